//! PCI devices behind an IOMMU: the data that the monitor passes to a device's domain.
//!
//! The core maps a part of the domain's frames in the device's I/O page table, and the registers of
//! the device into the domain's window. The domain receives the device's interrupt as an eventfd.
//! It receives no descriptor of the device, so it can change neither the mappings nor the
//! configuration space.

use crate::wire_enum::wire_enum;

/// The first I/O address of the domain's frames, above the interrupt range of x86 processors.
pub const IO_BASE: u64 = 1 << 32;

/// The number of window slots reserved for each structure of registers.
pub const WINDOW_SLOTS: u32 = 16;

/// Returns whether a text has the form of a PCI address, as the kernel writes it.
#[must_use]
pub fn is_address(text: &str) -> bool {
    let form = "dddd:dd:dd.d";
    let fits = |(found, form): (char, char)| match form {
        'd' => matches!(found, '0'..='9' | 'a'..='f'),
        other => found == other,
    };
    text.len() == form.len() && text.chars().zip(form.chars()).all(fits)
}

wire_enum! {
    /// A kind of device.
    pub enum PciKind: u8 from u64 {
        /// A virtio-net device.
        VirtioNet = 0,
        /// An Intel 82574.
        Intel82574 = 1,
    }
}

wire_enum! {
    /// A structure of registers of a device.
    pub enum Structure: u8 from u64 {
        /// The common configuration of a virtio device; the general registers of an 82574.
        Common = 0,
        /// The notification addresses of a virtio device; the registers of an 82574 for queues,
        /// counters and filters.
        Notify = 1,
    }
}

/// Offset in bytes of the second structure of an 82574 from the first one.
pub const INTEL_QUEUES_AT: u32 = 0x2000;

impl Structure {
    /// Returns the first slot of the structure, if the device's slots begin at `first`.
    #[must_use]
    pub const fn slot(self, first: u32) -> u32 {
        first + self as u32 * WINDOW_SLOTS
    }
}

/// Position and size of a structure in its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructureLayout {
    /// Offset of the structure in its first page, in bytes.
    pub offset: u16,
    /// The number of mapped bytes of the structure.
    pub bytes: u32,
}

impl StructureLayout {
    /// Encodes the layout as a result word.
    #[must_use]
    pub const fn encode(self) -> u64 {
        self.offset as u64 | (self.bytes as u64) << 32
    }

    /// Decodes a result word.
    #[must_use]
    pub const fn decode(word: u64) -> Self {
        Self {
            offset: word as u16,
            bytes: (word >> 32) as u32,
        }
    }
}

/// Control calls of a PCI device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciControl {
    /// Returns a structure's [`StructureLayout`].
    Layout(Structure),
    /// Returns the distance in bytes between the notification addresses of two queues.
    NotifyMultiplier,
    /// Returns 1 if another domain has used the device before, otherwise 0.
    HasServed,
    /// Returns the [`PciKind`].
    Kind,
}

impl PciControl {
    const LAYOUT: u64 = 1;
    const NOTIFY_MULTIPLIER: u64 = 2;
    const HAS_SERVED: u64 = 3;
    const KIND: u64 = 4;

    /// Encodes the call as words 1 and 2 of a hypercall.
    #[must_use]
    pub const fn encode(self) -> [u64; 2] {
        match self {
            Self::Layout(structure) => [Self::LAYOUT, structure as u64],
            Self::NotifyMultiplier => [Self::NOTIFY_MULTIPLIER, 0],
            Self::HasServed => [Self::HAS_SERVED, 0],
            Self::Kind => [Self::KIND, 0],
        }
    }

    /// Decodes words 1 and 2 of a hypercall.
    #[must_use]
    pub fn decode(words: [u64; 2]) -> Option<Self> {
        match words {
            [Self::LAYOUT, number] => Structure::from_wire(number).map(Self::Layout),
            [Self::NOTIFY_MULTIPLIER, 0] => Some(Self::NotifyMultiplier),
            [Self::HAS_SERVED, 0] => Some(Self::HasServed),
            [Self::KIND, 0] => Some(Self::Kind),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_calls_survive_encoding() {
        for call in [
            PciControl::Layout(Structure::Common),
            PciControl::Layout(Structure::Notify),
            PciControl::NotifyMultiplier,
            PciControl::HasServed,
            PciControl::Kind,
        ] {
            assert_eq!(PciControl::decode(call.encode()), Some(call));
        }
        for nonsense in [[0, 0], [1, 2], [2, 1], [3, 1], [4, 1], [u64::MAX, 0]] {
            assert_eq!(PciControl::decode(nonsense), None, "{nonsense:?}");
        }
        for kind in PciKind::ALL {
            assert_eq!(PciKind::from_wire(kind as u64), Some(kind));
        }
        assert_eq!(PciKind::from_wire(PciKind::ALL.len() as u64), None);
        let (offset, bytes) = (0x0fff, u32::MAX);
        let layout = StructureLayout { offset, bytes };
        assert_eq!(StructureLayout::decode(layout.encode()), layout);
    }
}
