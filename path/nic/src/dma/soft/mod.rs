//! A device in software that stands where hardware stands: it moves frames between a wire and
//! posted buffers, through the I/O page table.
//!
//! | module | contents |
//! |---|---|
//! | [`wire`] | the wire behind the device |
//! | [`device`] | the device: queues, MAC filter, interrupt moderation, faults |
//! | `beside` | the device in a separate process: interrupts, and sleep |
//! | [`interrupt`] | interrupts of receive queues |
//! | `merge`, [`merger`] | the device's large receive offload |
//! | `core` | the device, its I/O page table and the dedicated queues |
//! | [`nic`] | device and driver as one NIC |
//! | [`queues`] | the dedicated queues of this NIC |

mod beside;
mod core;
pub mod device;
pub mod interrupt;
mod merge;
pub mod merger;
pub mod nic;
pub mod queues;
pub mod wire;

pub use device::SoftDevice;
pub use interrupt::Interrupts;
pub use merger::{Arrival, Merger};
pub use nic::{SoftEvent, SoftNic, SoftSetup};
pub use wire::Wire;
