//! Memory that somebody else may change or take away at any moment.
//!
//! A peer can write its pages while we look at them, the monitor can take a granted page away
//! under a running copy. So nothing here ever makes a Rust reference to payload bytes:
//!
//! * a [`Span`] is an address and a length inside a range that is reserved for such memory for
//!   the life of the process; it can go stale, but it can never point at a Rust object;
//! * bytes move only through copies written in assembly ([`Span::read`], [`Span::get`], …,
//!   [`copy`], [`ones_sum`]): the compiler assumes nothing about them, and a touch of a page that
//!   is gone or read-only makes them return [`Fault`] instead of ending the process;
//! * control words are atomics ([`Span::u32`], [`Span::u64`]), or faultable single loads and
//!   stores ([`Span::load_u32`] …) where the page may be taken away.
//!
//! Who may touch what:
//!
//! ```text
//! Area     this process's own long-lived memory, or what the monitor laid out for a domain
//! Region   the monitor's mapping of a domain's memory: a sealed memfd
//! home     the memory of the domain that this process runs as (fixed addresses, see `abi::layout`)
//! arena    a domain's heap: a static array, so that no system call is needed
//! ```
//!
//! This crate is one of the few that may use `unsafe`; every block says why it is sound.
#![allow(unsafe_code)]

mod access;
mod area;
pub mod arena;
pub mod attach;
mod cpu;
mod engine;
mod fault;
pub mod futex;
pub mod home;
pub mod rate;
mod region;
mod reserve;
mod span;
pub mod sync;
pub mod time;
pub mod umem;
pub mod uses;

pub use access::{copy, ones_sum, ones_sum_bytes};
pub use area::Area;
pub use cpu::cpu;
pub use fault::{Fault, install_fault_handler};
pub use region::Region;
pub use span::Span;
