//! The driver domain, and its settings for every guest interface.

use crate::domain::{BufferSize, GrantMode, Offloads, RING_ORDER_MAX, RingFormat};
use crate::findings::Findings;
use crate::problem::ConfigPart;
use crate::table::TomlTable;
use serde::{Deserialize, Serialize};

/// The driver domain. Its program's configuration has the keys that are not skipped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverSection {
    /// CPUs that it may run on; empty: all.
    #[serde(skip)]
    pub cpus: Vec<usize>,
    /// Number of workers, 1 … [`DriverSection::WORKERS_MAX`]. They share nothing: each has a queue
    /// of every NIC and of every guest interface.
    #[serde(skip)]
    pub workers: u32,
    /// How it accesses granted pages.
    pub grants: GrantMode,
    /// The most offloads that it offers to guests.
    pub offloads: Offloads,
    /// Microseconds of polling before it sleeps. `None`: [`DriverSection::SPIN_SEPARATE_CPUS_US`]
    /// if its CPUs are set and no guest may use them; adaptive, up to
    /// [`DriverSection::SPIN_MAX_US`], if no CPUs are set; otherwise 0, because a domain that spins
    /// on its peer's CPU delays itself.
    pub spin_us: Option<u32>,
    /// Broadcast and multicast frames that each port may send, per second.
    pub broadcast_pps: u32,
    /// Seconds after which a silent station behind a NIC is removed from the forwarding table.
    pub mac_ageing_s: u32,
    /// The maximum number of flows of a port whose rules keep state.
    pub flows: u32,
    /// Maximum number of ports of a worker that may keep state at the same time.
    pub flow_tables: u32,
    /// Whether all domains keep the hop ledger.
    pub ledger: bool,
    /// Whether the manager restarts it after it exits.
    #[serde(skip)]
    pub restart: bool,
    /// Longest pause before a restart if it exits repeatedly, milliseconds.
    #[serde(skip)]
    pub restart_pause_ms: u32,
}

impl DriverSection {
    /// Microseconds of polling if the driver domain has separate CPUs: about the cost of a wake-up.
    pub const SPIN_SEPARATE_CPUS_US: u32 = 50;
    /// Maximum microseconds of polling of an adaptive domain: about the time that a peer on another
    /// core needs to wake up and answer.
    pub const SPIN_MAX_US: u32 = 50;
    /// Microseconds between two wake-ups of sleeping guests that may use the driver's CPUs, while a
    /// NIC has more frames and they have receive buffers. A woken guest takes the CPU from the
    /// driver. In this time, a wire at several Gb/s delivers a few batches. If the driver domain
    /// has separate CPUs, guests are woken immediately.
    pub const NOTIFY_SHARED_US: u32 = 300;
    /// Maximum number of workers.
    pub const WORKERS_MAX: u32 = 16;

    /// Reads a section `[driver]`.
    pub(crate) fn read(t: &TomlTable<'_, '_>) -> Self {
        let usual = Self::default();
        Self {
            cpus: t.value("cpus").unwrap_or_default(),
            workers: t.value("workers").unwrap_or(usual.workers),
            restart: t.value("restart").unwrap_or(usual.restart),
            restart_pause_ms: t
                .value("restart_pause_ms")
                .unwrap_or(usual.restart_pause_ms),
            ..t.fields()
        }
    }

    /// Checks the keys of `[driver]`.
    pub(crate) fn check(&self, found: &mut Findings) {
        found.cpus(ConfigPart::Driver, &self.cpus);
        found.spin_us(ConfigPart::Driver, self.spin_us);
        for (key, value, good) in [
            ("workers", self.workers, 1..=DriverSection::WORKERS_MAX),
            ("broadcast_pps", self.broadcast_pps, 1..=10_000_000),
            ("mac_ageing_s", self.mac_ageing_s, 1..=1_000_000),
            ("flow_tables", self.flow_tables, 0..=1024),
            ("restart_pause_ms", self.restart_pause_ms, 0..=60_000),
        ] {
            found.range(ConfigPart::Driver, key, value, good);
        }
        let flows = self.flows;
        if !flows.is_power_of_two() || !(64..=65_536).contains(&flows) {
            let what = format!("`flows` is {flows}");
            found.add(
                ConfigPart::Driver,
                "flows",
                what,
                "write a power of two from 64 to 65536",
            );
        }
    }

    /// Returns the CPUs of a worker; empty: all. Of n workers, each uses every n-th CPU of the
    /// list.
    pub(crate) fn worker_cpus(&self, worker: u32) -> Vec<usize> {
        let first = worker as usize % self.cpus.len().max(1);
        let every = self.workers.max(1) as usize;
        let cpus = self.cpus.iter().skip(first).step_by(every);
        cpus.copied().collect()
    }

    /// Returns a worker's share of a rate that limits all of them together.
    pub(crate) fn share_of(&self, mbps: f64) -> f64 {
        mbps / f64::from(self.workers.max(1))
    }
}

impl Default for DriverSection {
    fn default() -> Self {
        Self {
            cpus: Vec::new(),
            workers: 1,
            grants: GrantMode::default(),
            offloads: Offloads::default(),
            spin_us: None,
            broadcast_pps: 10_000,
            mac_ageing_s: 300,
            flows: 4096,
            flow_tables: 64,
            ledger: true,
            restart: true,
            restart_pause_ms: 5_000,
        }
    }
}

/// Buffers of every vif. Some keys have other names in a guest's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VifBuffers {
    /// Size of a buffer.
    #[serde(rename(serialize = "buffers"), alias = "buffers")]
    pub size: BufferSize,
    /// Number of buffers posted for frames to the guest.
    #[serde(rename(serialize = "to_guest_buffers"), alias = "to_guest_buffers")]
    pub to_guest: u32,
    /// Number of additional buffers, which replace buffers whose frames the guest still holds.
    /// Their pages are granted on demand.
    #[serde(rename(serialize = "spare_buffers"), alias = "spare_buffers")]
    pub spare: u32,
    /// The maximum number of free receive pages that the guest keeps granted. It revokes the grants
    /// of further free pages. `None`: no limit.
    pub release_threshold: Option<u32>,
    /// Number of buffers for frames from the guest. A guest's configuration has the number of all
    /// pages instead.
    #[serde(skip_serializing)]
    pub from_guest: u32,
    /// Number of received frames ahead of the current one whose headers a guest prefetches; 0:
    /// none.
    pub prefetch: u32,
    /// Bytes left free in front of each buffer for frames to the guest. Guests of earlier versions
    /// do not know the key.
    #[serde(skip_serializing_if = "is_zero")]
    pub headroom: u32,
}

pub(crate) fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl VifBuffers {
    /// Reads a section `[buffers]`.
    pub(crate) fn read(t: &TomlTable<'_, '_>) -> Self {
        t.fields_except(&["buffers", "to_guest_buffers", "spare_buffers"])
    }

    /// Checks the keys of `[buffers]`.
    pub(crate) fn check(&self, found: &mut Findings) {
        for (key, value, good) in [
            ("to_guest", self.to_guest, 32..=4096),
            ("spare", self.spare, 0..=4096),
            ("from_guest", self.from_guest, 32..=4096),
            ("prefetch", self.prefetch, 0..=256),
            ("headroom", self.headroom, 0..=1024),
        ] {
            found.range(ConfigPart::Buffers, key, value, good);
        }
    }
}

impl Default for VifBuffers {
    // 1.5 MB in half pages, so that the buffers in use fit a second-level cache. The buffers to the
    // guest are enough for the frames that a wire may deliver while a guest waits for a shared CPU.
    fn default() -> Self {
        Self {
            size: BufferSize::Half,
            to_guest: 512,
            spare: 0,
            release_threshold: None,
            from_guest: 256,
            prefetch: 64,
            headroom: 0,
        }
    }
}

/// Rings of every vif.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VifRings {
    /// Slots of each of the two rings: 256, 512, 1024, 2048 or 4096. A stock peer uses 256.
    pub slots: u32,
    /// Their layout.
    pub format: RingFormat,
}

impl VifRings {
    /// Checks the keys of `[ring]`.
    pub(crate) fn check(&self, found: &mut Findings) {
        let slots = self.slots;
        let most = SLOTS_PER_PAGE << RING_ORDER_MAX;
        if !slots.is_power_of_two() || !(SLOTS_PER_PAGE..=most).contains(&slots) {
            let remedy = "write 256, 512, 1024, 2048 or 4096";
            found.add(
                ConfigPart::Ring,
                "slots",
                format!("`slots` is {slots}"),
                remedy,
            );
        }
    }
}

impl Default for VifRings {
    fn default() -> Self {
        Self {
            slots: 1024,
            format: RingFormat::default(),
        }
    }
}

/// Slots of a ring of one page.
pub(crate) const SLOTS_PER_PAGE: u32 = 256;
