//! A software device that replaces hardware: it moves frames between a wire and posted buffers, and
//! accesses memory only through the I/O page table.
//!
//! | module | contents |
//! |---|---|
//! | [`wire`] | the interface of the device's wire |
//! | [`device`] | the device: queues, MAC filter, interrupt moderation, faults |
//! | `separate` | interrupts and sleep of a device in a separate process |
//! | [`interrupt`] | interrupts of receive queues |
//! | `merge`, [`merger`] | the device's large receive offload |
//! | `local` | the device, its I/O page table and the dedicated queues |
//! | [`nic`] | a NIC that combines device and driver |
//! | [`queues`] | the dedicated queues of this NIC |

pub mod device;
pub mod interrupt;
mod local;
mod merge;
pub mod merger;
#[cfg(all(test, loom))]
mod model;
pub mod nic;
pub mod queues;
mod separate;
pub mod wire;

pub use device::SoftDevice;
pub use interrupt::InterruptModeration;
pub use merger::{Arrival, Merger};
pub use nic::{SoftEvent, SoftNic, SoftSetup};
pub use wire::Wire;
