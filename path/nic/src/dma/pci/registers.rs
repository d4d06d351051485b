//! Access to the registers of a device.

use shmem::{Fault, Span};
use std::fmt::Debug;

/// Registers with the names `N`.
pub trait Registers<N>: Debug {
    /// Reads a register.
    ///
    /// # Errors
    /// The registers are not accessible.
    fn get(&self, name: N) -> Result<u32, Fault>;

    /// Writes a register, truncated to its width.
    ///
    /// # Errors
    /// The registers are not accessible.
    fn set(&self, name: N, value: u32) -> Result<(), Fault>;
}

/// Registers that the monitor has mapped, in two parts ([`abi::pci::Structure`]).
#[derive(Clone, Copy, Debug)]
pub struct RegisterWindow {
    /// The first part.
    pub common: Span,
    /// The second part.
    pub notify: Span,
    /// Bytes between two notification addresses of a virtio device.
    pub multiplier: u32,
}
