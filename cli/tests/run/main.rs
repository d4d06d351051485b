//! `grantway run`, as root of a mock system: a network namespace for the system, and one for the
//! world outside.

mod attached;
mod leftover_processes;
mod network;
mod processes;
mod removed;
mod signals;
mod status;
mod terminal;
mod testbed;
mod unprivileged;
