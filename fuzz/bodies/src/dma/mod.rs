//! Descriptor rings and their devices.

mod common;
mod device;
mod driver;
mod pci;

use crate::input::Input;

/// Tests both ends of descriptor rings. The first byte selects the hostile end and the kind of
/// ring.
pub fn dma(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(4) {
        0 => device::remote(&mut input),
        1 => driver::soft(&mut input),
        2 => pci::intel(&mut input),
        _ => pci::virtio(&mut input),
    }
}
