//! Code that the command-line programs share: `grantway`, `grantway-lab` and `cargo xtask`.
//!
//! | module | purpose |
//! |---|---|
//! | [`failure`] | failures of commands, with their exit statuses |
//! | [`exit`] | exit statuses of a command that a program runs for its user |
//! | [`output`] | standard output: text and JSON lines |
//! | [`clean`] | text from other programs, before a terminal shows it |
//! | [`number`] | numbers for display |
//! | [`interrupt`] | Ctrl-C |
//! | [`helper`] | helper processes with a line protocol |
#![forbid(unsafe_code)]

pub mod clean;
pub mod exit;
pub mod failure;
pub mod helper;
pub mod interrupt;
mod number;
pub mod output;

pub use failure::{Failure, exit_code};
pub use number::number;
