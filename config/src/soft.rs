//! A device in software with descriptor rings.

use crate::address::MacAddress;
use crate::cable::Cable;
use crate::findings::Findings;
use crate::kernel_port::KernelPort;
use crate::problem::ConfigPart;
use crate::station;
use crate::table::TomlTable;
use serde::{Deserialize, Serialize};

/// The wire of a device in software.
#[derive(Clone, Debug, PartialEq)]
pub enum SoftWire {
    /// One end of a cable in memory.
    Cable(Cable),
    /// A TAP with "the wire" behind it, in the kernel.
    Tap(KernelPort),
    /// A generator, which sends frames as fast as the wire and the device can carry them.
    Source(FrameSource),
}

/// Domain in which a device in software runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DevicePlace {
    /// In a separate domain.
    #[default]
    Domain,
    /// In the driver domain.
    Driver,
}

impl SoftWire {
    /// Reads the wire of NIC number `n`.
    pub(crate) fn read(n: usize, t: &TomlTable<'_, '_>) -> Self {
        t.depend(&["delay_us", "loss", "seed", "app"], "wire");
        t.depend(
            &["ifname", "netns", "routes", "tx_queue", "allow_overlap"],
            "wire",
        );
        t.depend(&["to", "size"], "wire");
        let memory = || Self::Cable(Cable::read(n, t));
        let tap = || Self::Tap(KernelPort::read(t));
        let source = || {
            t.needs("to", station::SEND_TO);
            Self::Source(t.fields())
        };
        let wires: [(&str, &dyn Fn() -> Self); 3] =
            [("memory", &memory), ("tap", &tap), ("source", &source)];
        t.choice("wire", &wires).unwrap_or(&memory)()
    }
}

/// Frames that a wire generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FrameSource {
    /// Destination MAC.
    pub to: MacAddress,
    /// Bytes of a frame.
    pub size: u32,
}

/// Bytes of the smallest frame, without its checksum: the default size of generated frames.
pub(crate) const FRAME_BYTES_MIN: u32 = 60;

impl Default for FrameSource {
    fn default() -> Self {
        Self {
            to: MacAddress::default(),
            size: FRAME_BYTES_MIN,
        }
    }
}

/// Descriptor rings of a device, and its interrupt moderation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rings {
    /// Entries of each ring, a power of two.
    pub descriptors: u32,
    /// Microseconds from the first frame to the interrupt.
    pub interrupt_us: u32,
    /// Number of frames that raise the interrupt before `interrupt_us` has passed; 0: only the time
    /// raises it.
    pub interrupt_frames: u32,
}

impl Default for Rings {
    fn default() -> Self {
        Self {
            descriptors: 256,
            interrupt_us: 0,
            interrupt_frames: 0,
        }
    }
}

impl Rings {
    /// Checks the interrupt moderation. `waits` says whether the driver waits for interrupts.
    pub(crate) fn check(self, found: &mut Findings, part: ConfigPart, waits: bool) {
        found.range(part, "interrupt_us", self.interrupt_us, 0..=10_000);
        found.range(part, "interrupt_frames", self.interrupt_frames, 0..=4096);
        if self.interrupt_us > 0 && !waits {
            let what = "`interrupt_us` is set and `moderation` is not \"event\"";
            let remedy = "leave one of them out: only \"event\" waits for interrupts";
            found.add(part, "interrupt_us", what, remedy);
        }
    }
}
