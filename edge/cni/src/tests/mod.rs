//! Calls as runtimes make them, with a machine that only answers and a plugin that gives out
//! addresses from a file.

mod bandwidth;
mod bench;
mod calls;
mod captured;
mod ends;
mod errors;
mod netavark;
