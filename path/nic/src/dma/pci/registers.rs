//! Access to the registers of a device.

use shmem::{Fault, Span};
use std::fmt::Debug;

/// Access to registers that are named by `N`.
pub trait Registers<N>: Debug {
    /// Reads a register.
    ///
    /// # Errors
    /// Returns an error if the registers are not accessible.
    fn get(&self, name: N) -> Result<u32, Fault>;

    /// Writes `value`, truncated to the register's width, to a register.
    ///
    /// # Errors
    /// Returns an error if the registers are not accessible.
    fn set(&self, name: N, value: u32) -> Result<(), Fault>;
}

/// The registers that the monitor has mapped, in two parts ([`abi::pci::Structure`]).
#[derive(Clone, Copy, Debug)]
pub struct RegisterWindow {
    /// The part [`abi::pci::Structure::Common`].
    pub common: Span,
    /// The part [`abi::pci::Structure::Notify`].
    pub notify: Span,
    /// Distance in bytes between two notification addresses of a virtio device.
    pub multiplier: u32,
}
