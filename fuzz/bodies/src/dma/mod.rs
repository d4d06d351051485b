//! Descriptor rings and their devices.

mod common;
mod device;
mod driver;
mod pci;

use crate::input::Input;

/// The two ends of descriptor rings; the first byte chooses the hostile end and the kind of ring.
pub fn dma(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(4) {
        0 => device::remote(&mut input),
        1 => driver::soft(&mut input),
        2 => pci::intel(&mut input),
        _ => pci::virtio(&mut input),
    }
}
