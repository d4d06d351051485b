//! The program `grantway` as a person or a script meets it.

mod commands;
mod machine;
mod place;
