//! The routines that access bytes. They take raw pointers, and return whether they succeeded.
//!
//! All of them read and write exactly `[0, len)`, at any alignment, and recover from faults. After
//! a fault, the destination contains a mixture of old and new bytes. Ranges may overlap; their
//! contents are unspecified afterwards. Sources may change during a copy: a routine may read a byte
//! twice, and writes one of the two values to the destination.
//!
//! SAFETY contract of every function here: each of the two ranges lies in memory that the caller
//! owns during the call (exclusively, if it is the destination), or in an address range that is
//! reserved for spans and so contains no Rust object.

mod avx2;
mod bulk;
mod plain;
mod short;
mod sse2;
pub(crate) mod sum;
mod words;

#[cfg(test)]
mod tests;

pub(crate) use bulk::{copy, copy_64, copy_96, fill, prefetch, prefetch_write};
pub(crate) use plain::copy as copy_plainly;
pub(crate) use words::{
    load_u8, load_u16, load_u32, load_u64, store_2, store_3, store_u8, store_u16, store_u32,
    store_u64, swap_u32,
};
