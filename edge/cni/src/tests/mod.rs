//! Calls of runtimes, with a mock machine and a plugin that assigns addresses from a file.

mod bandwidth;
mod bench;
mod calls;
mod captured;
mod errors;
mod netavark;
mod removal;
