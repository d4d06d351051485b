//! Memory that other processes may change or unmap at any moment.
//!
//! A peer can write to its pages while this process reads them, and the monitor can unmap a granted
//! page during a copy. So this crate never creates a Rust reference to payload bytes:
//!
//! * a [`Span`] is an address and a length inside a range that is reserved for spans for the life
//!   of the process; a span can become stale, but it never points to a Rust object;
//! * only routines written in assembly access bytes ([`Span::read`], [`Span::get`], …, [`copy`],
//!   [`ones_sum`]), and the compiler assumes nothing about them; if a page is unmapped or
//!   read-only, they return [`Fault`] instead of crashing the process;
//! * control words are atomics ([`Span::u32`], [`Span::u64`]), or, if their page may be unmapped,
//!   single loads and stores that may fault ([`Span::load_u32`] …).
//!
//! Kinds of memory:
//!
//! ```text
//! Area     long-lived memory of this process, or memory that the monitor laid out for it
//! Region   the monitor's mapping of a domain's memory: a sealed memfd
//! Mapping  another program's file, in a process that is not confined
//! DomainMemory  the memory of the domain that this process runs as, laid out by `abi::layout`
//! arena    a domain's heap: a static array, so that no system call is needed
//! ```
//!
//! This crate is one of the few that may use `unsafe`. A comment at every block gives the reason
//! for which it is sound.
#![allow(unsafe_code)]

mod access;
mod area;
pub mod arena;
pub mod attach;
mod cpu;
pub mod domain_memory;
mod engine;
mod fault;
pub mod futex;
pub mod grant_use;
pub mod io_map;
mod mapping;
pub mod rate;
mod region;
mod reserve;
mod span;
pub mod sync;
pub mod time;
pub mod umem;

pub use access::{copy, fold_ones_sum, ones_sum, ones_sum_bytes};
pub use area::Area;
pub use cpu::cpu;
pub use fault::{Fault, install_fault_handler};
pub use mapping::Mapping;
pub use region::Region;
pub use span::Span;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if another thread panicked while it held the lock. A release build aborts on
/// a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
