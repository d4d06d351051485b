//! `grantway run`, as root of a system of its own: a network namespace that plays the system, and
//! one that plays the world outside.

mod attached;
mod leave;
mod outside;
mod removed;
mod signals;
mod status;
mod terminal;
mod unprivileged;
mod world;
