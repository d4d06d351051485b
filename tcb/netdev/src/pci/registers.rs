//! The locations of a device's registers. Capabilities in PCI configuration space describe those of
//! a virtio device (virtio 1.2, section 4.1.4, and PCI Local Bus 3.0, section 6.8.2); those of an
//! 82574 are fixed. The device writes the configuration space, so every number is checked.

use abi::PAGE;
use abi::pci::{INTEL_QUEUES_AT, PciKind, Structure, WINDOW_SLOTS};

/// Bytes of a device's configuration space that contain its capabilities.
pub(super) const CONFIG_BYTES: usize = 256;
/// Maximum number of capabilities in the configuration space.
const CAPABILITIES_MAX: usize = 48;
const DEVICE_AT: usize = 0x00;
const STATUS_AT: usize = 0x06;
const HAS_CAPABILITIES: u8 = 0x10;
const CAPABILITIES_AT: usize = 0x34;
const VENDOR_CAPABILITY: u8 = 0x09;
const MSIX_CAPABILITY: u8 = 0x11;
/// Values of `cfg_type`.
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
/// Number of BARs of a device.
const BARS: u8 = 6;
/// Bytes of an entry of the MSI-X table.
const MSIX_ENTRY: u64 = 16;
/// Bytes of the common configuration that a driver needs.
const COMMON_BYTES: u32 = 56;
/// The pages of registers of an 82574 that its driver needs.
const INTEL_GENERAL: BarRange = BarRange {
    bar: 0,
    offset: 0,
    bytes: 0x1000,
};
const INTEL_QUEUES: BarRange = BarRange {
    bar: 0,
    offset: INTEL_QUEUES_AT,
    bytes: 0x4000,
};
/// Ids of vendors, and of virtio-net devices: with the modern interface only, and with both
/// interfaces.
const VIRTIO: u16 = 0x1af4;
const NET: [u16; 2] = [0x1041, TRANSITIONAL_NET];
pub(super) const TRANSITIONAL_NET: u16 = 0x1000;
const INTEL: u16 = 0x8086;
const I82574: u16 = 0x10d3;

/// Returns the kind of a device, or `None` if it is not supported.
pub(super) fn kind(vendor: u16, device: u16) -> Option<PciKind> {
    match (vendor, device) {
        (VIRTIO, device) if NET.contains(&device) => Some(PciKind::VirtioNet),
        (INTEL, I82574) => Some(PciKind::Intel82574),
        _ => None,
    }
}

/// A range of a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BarRange {
    pub(super) bar: u8,
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

impl BarRange {
    /// Returns the pages that contain the range.
    pub(super) fn pages(self) -> std::ops::Range<u64> {
        let (start, page) = (u64::from(self.offset), PAGE as u64);
        start / page..(start + u64::from(self.bytes)).div_ceil(page)
    }

    /// Limits the range to the pages for which a domain has slots.
    fn cut(self) -> Self {
        let most = WINDOW_SLOTS * PAGE as u32 - self.offset % PAGE as u32;
        let bytes = self.bytes.min(most);
        Self { bytes, ..self }
    }
}

/// The registers of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registers {
    pub(super) kind: PciKind,
    pub(super) common: BarRange,
    pub(super) notify: BarRange,
    /// Bytes between the notification addresses of two queues.
    pub(super) multiplier: u32,
}

impl Registers {
    /// Returns the range of a structure.
    pub(super) fn range(&self, structure: Structure) -> BarRange {
        match structure {
            Structure::Common => self.common,
            Structure::Notify => self.notify,
        }
    }

    /// Finds the registers described by a device's configuration space. A domain with access to the
    /// MSI-X table could raise any interrupt on a system without interrupt remapping, so the table
    /// must not share a page with the registers.
    pub(super) fn find(config: &[u8; CONFIG_BYTES]) -> Result<Self, &'static str> {
        let ids = word(config, DEVICE_AT);
        let found = match kind(ids as u16, (ids >> 16) as u16) {
            Some(PciKind::Intel82574) => Self {
                kind: PciKind::Intel82574,
                common: INTEL_GENERAL,
                notify: INTEL_QUEUES,
                multiplier: 0,
            },
            Some(PciKind::VirtioNet) | None => Self::virtio(config)?,
        };
        // The kernel uses the first MSI-X capability.
        let msix = capabilities(config).find(|&at| byte(config, at) == MSIX_CAPABILITY);
        let msix = msix_ranges(config, msix.ok_or("it has no MSI-X interrupts")?);
        let overlaps = |own: BarRange, other: (u8, u64, u64)| {
            let pages = own.pages();
            let (first, end) = (other.1 / PAGE as u64, other.2.div_ceil(PAGE as u64));
            own.bar == other.0 && pages.start < end && first < pages.end
        };
        let is_shared = |own| msix.iter().any(|other| overlaps(own, *other));
        if is_shared(found.common) || is_shared(found.notify) {
            return Err("its MSI-X table shares a page with its registers");
        }
        Ok(found)
    }

    /// Finds the registers of a virtio device.
    fn virtio(config: &[u8; CONFIG_BYTES]) -> Result<Self, &'static str> {
        let (mut common, mut notify) = (None, None);
        for at in capabilities(config).filter(|&at| byte(config, at) == VENDOR_CAPABILITY) {
            match byte(config, at + 3) {
                COMMON => common = common.or(bar_range(config, at)),
                NOTIFY => {
                    let found = bar_range(config, at);
                    notify = notify.or(found.map(|range| (range, word(config, at + 16))));
                }
                _ => {}
            }
        }
        let common = common.filter(|range| range.bytes >= COMMON_BYTES);
        let missing =
            "it has no registers of the modern virtio interface (QEMU: disable-legacy=on)";
        let (common, (notify, multiplier)) = common.zip(notify).ok_or(missing)?;
        Ok(Self {
            kind: PciKind::VirtioNet,
            common: common.cut(),
            notify: notify.cut(),
            multiplier,
        })
    }
}

/// Returns the offsets of all capabilities.
fn capabilities(config: &[u8; CONFIG_BYTES]) -> impl Iterator<Item = usize> + '_ {
    let has_any = byte(config, STATUS_AT) & HAS_CAPABILITIES != 0;
    let place = |at: usize| Some(usize::from(byte(config, at) & !3)).filter(|next| *next >= 0x40);
    let first = place(CAPABILITIES_AT).filter(|_| has_any);
    // The number of steps is limited, because a device may link its capabilities in a circle.
    std::iter::successors(first, move |at| place(at + 1)).take(CAPABILITIES_MAX)
}

/// Returns the range that a virtio capability describes.
fn bar_range(config: &[u8; CONFIG_BYTES], at: usize) -> Option<BarRange> {
    let (bar, offset, bytes) = (
        byte(config, at + 4),
        word(config, at + 8),
        word(config, at + 12),
    );
    let is_aligned = offset % 4 == 0 && offset.checked_add(bytes).is_some();
    (bar < BARS && bytes > 0 && is_aligned).then_some(BarRange { bar, offset, bytes })
}

/// Returns BAR, start and end of the MSI-X table and of its pending bits.
fn msix_ranges(config: &[u8; CONFIG_BYTES], at: usize) -> [(u8, u64, u64); 2] {
    let control = u64::from(word(config, at) >> 16);
    let entries = (control & 0x7ff) + 1;
    let range = |word: u32, bytes: u64| {
        let start = u64::from(word & !7);
        ((word & 7) as u8, start, start + bytes)
    };
    let pending = entries.div_ceil(64) * 8;
    [
        range(word(config, at + 4), entries * MSIX_ENTRY),
        range(word(config, at + 8), pending),
    ]
}

fn byte(config: &[u8; CONFIG_BYTES], at: usize) -> u8 {
    config.get(at).copied().unwrap_or(0)
}

fn word(config: &[u8; CONFIG_BYTES], at: usize) -> u32 {
    let bytes = config
        .get(at..at + 4)
        .and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the configuration space of a device whose common registers are at `common` of BAR 4,
    /// and whose MSI-X table is at the start of BAR `msix`.
    fn config(common: u32, msix: u8) -> [u8; CONFIG_BYTES] {
        let mut config = [0; CONFIG_BYTES];
        config[STATUS_AT] = HAS_CAPABILITIES;
        config[CAPABILITIES_AT] = 0x40;
        config[0x40..0x44].copy_from_slice(&[MSIX_CAPABILITY, 0x50, 3, 0]);
        config[0x44] = msix;
        config[0x48..0x4c].copy_from_slice(&(0x800 | u32::from(msix)).to_le_bytes());
        for (at, next, kind, offset, bytes) in [
            (0x50, 0x60, COMMON, common, 0x1000),
            (0x60, 0x84, NOTIFY, 0x3000, 0x40_0000),
            (0x84, 0, 5, 0, 0),
        ] {
            config[at..at + 5].copy_from_slice(&[VENDOR_CAPABILITY, next, 16, kind, 4]);
            config[at + 8..at + 12].copy_from_slice(&u32::to_le_bytes(offset));
            config[at + 12..at + 16].copy_from_slice(&u32::to_le_bytes(bytes));
        }
        config[0x70] = 4;
        config
    }

    #[test]
    fn registers_are_found_and_cut_to_their_slots() {
        let found = Registers::find(&config(0, 1)).unwrap();
        let range = |offset, bytes| BarRange {
            bar: 4,
            offset,
            bytes,
        };
        assert_eq!(found.kind, PciKind::VirtioNet);
        assert_eq!(found.common, range(0, 0x1000));
        assert_eq!(found.notify, range(0x3000, WINDOW_SLOTS * PAGE as u32));
        assert_eq!(found.multiplier, 4);
    }

    #[test]
    fn the_interrupt_table_is_not_mapped() {
        let shared = Registers::find(&config(0, 4)).unwrap_err();
        assert!(shared.contains("shares a page"), "{shared}");
        Registers::find(&config(0x1000, 4)).unwrap();
    }

    #[test]
    fn invalid_configuration_space_is_rejected() {
        let with = |at: usize, value: u8| {
            let mut config = config(0, 1);
            config[at] = value;
            Registers::find(&config)
        };
        // Capabilities in a circle after the required ones, no capabilities, and a link into the
        // header.
        with(0x61, 0x60).unwrap();
        with(STATUS_AT, 0).unwrap_err();
        with(CAPABILITIES_AT, 0x04).unwrap_err();
        // A BAR that does not exist, an end beyond 4 GiB, too few bytes, an odd address.
        for (at, value) in [(0x54, 6), (0x5b, 0xff), (0x5d, 0), (0x58, 1)] {
            let mut config = config(0, 1);
            let bytes: u32 = match at {
                0x5b => u32::MAX,
                0x5d => 55,
                _ => 0x1000,
            };
            config[0x5c..0x60].copy_from_slice(&bytes.to_le_bytes());
            config[at] = value;
            let why = Registers::find(&config).unwrap_err();
            assert!(why.contains("no registers"), "{at:#x}: {why}");
        }
        let why = with(0x40, VENDOR_CAPABILITY).unwrap_err();
        assert_eq!(why, "it has no MSI-X interrupts");
    }

    /// Virtio capabilities in another type of device are ignored.
    #[test]
    fn registers_of_an_82574_are_fixed() {
        let intel = |msix| {
            let mut config = config(0, msix);
            config[..4].copy_from_slice(&[0x86, 0x80, 0xd3, 0x10]);
            config
        };
        let found = Registers::find(&intel(3)).unwrap();
        assert_eq!(found.kind, PciKind::Intel82574);
        let pages = [found.common, found.notify].map(|range| (range.bar, range.pages()));
        assert_eq!(pages, [(0, 0..1), (0, 2..6)]);
        let shared = Registers::find(&intel(0)).unwrap_err();
        assert!(shared.contains("shares a page"), "{shared}");
        let mut config = intel(3);
        config[STATUS_AT] = 0;
        let why = Registers::find(&config).unwrap_err();
        assert_eq!(why, "it has no MSI-X interrupts");
    }
}
