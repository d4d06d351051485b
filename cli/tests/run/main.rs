//! Tests of `grantway run` as root of a mock system. A network namespace represents the system, and
//! another one the outside.

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
