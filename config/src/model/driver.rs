//! The driver domain, and what every guest interface has of it.

use crate::domain::{BufferSize, GrantMode, Offloads, RingFormat};

/// The driver domain.
#[derive(Clone, Debug, PartialEq)]
pub struct Driver {
    /// CPUs that it may run on; empty: all.
    pub cpus: Vec<usize>,
    /// Domains that it consists of, 1 … [`Driver::WORKERS_MAX`]. They share nothing: each
    /// has a queue of every NIC and of every guest interface.
    pub workers: u32,
    /// How it gets at granted pages.
    pub grants: GrantMode,
    /// The most that it offers to guests.
    pub offloads: Offloads,
    /// Microseconds of looking for work before it sleeps; none: [`Driver::SPIN_APART_US`] if its
    /// CPUs are given and no guest may use them; up to [`Driver::SPIN_MOST_US`], as it turns out to
    /// be worth it, if none are given; else 0, because a domain that spins on its peer's CPU waits
    /// for itself.
    pub spin_us: Option<u32>,
    /// Broadcast and multicast frames that each port may send, per second.
    pub broadcast_pps: u32,
    /// Seconds after which a silent station behind a NIC is forgotten.
    pub mac_ageing_s: u32,
    /// Whether all domains keep the hop ledger.
    pub ledger: bool,
    /// Whether it is started again when it has ended.
    pub restart: bool,
    /// Milliseconds that this waits at the most, where it keeps ending.
    pub restart_pause_ms: u32,
}

impl Driver {
    /// The spin budget of domains where the driver domain has CPUs of its own: about the cost of a
    /// wake-up.
    pub const SPIN_APART_US: u32 = 50;
    /// The longest spin of a domain that may run on any CPU and finds out how long is worth it:
    /// about what a peer on another core needs to be woken and to answer.
    pub const SPIN_MOST_US: u32 = 50;
    /// Microseconds between two wake-ups of sleeping guests that may use the driver's CPUs, while a
    /// NIC has more frames and they have receive buffers. A guest that is woken takes the CPU from
    /// the driver; this is some batches of a wire at several Gb/s.
    /// Where the driver domain has CPUs of its own they are woken at once.
    pub const NOTIFY_SHARED_US: u32 = 300;
    /// The most workers.
    pub const WORKERS_MAX: u32 = 16;

    /// CPUs that a worker may run on: from its own place in the list on every n-th, where n is the
    /// number of workers; empty: all.
    pub(crate) fn worker_cpus(&self, worker: u32) -> Vec<usize> {
        let first = worker as usize % self.cpus.len().max(1);
        let every = self.workers.max(1) as usize;
        let cpus = self.cpus.iter().skip(first).step_by(every);
        cpus.copied().collect()
    }

    /// A worker's share of what all of them together may let through.
    pub(crate) fn share_of(&self, mbps: f64) -> f64 {
        mbps / f64::from(self.workers.max(1))
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            cpus: Vec::new(),
            workers: 1,
            grants: GrantMode::default(),
            offloads: Offloads::default(),
            spin_us: None,
            broadcast_pps: 10_000,
            mac_ageing_s: 300,
            ledger: true,
            restart: true,
            restart_pause_ms: 5_000,
        }
    }
}

/// Buffers of every vif.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Size of a buffer.
    pub size: BufferSize,
    /// Buffers that wait for frames to the guest.
    pub to_guest: u32,
    /// Buffers beside those that take the place of buffers whose frames the guest still has.
    pub spare: u32,
    /// Whole pages of free buffers for frames to the guest that stay granted, more are revoked;
    /// none: all stay.
    pub release_threshold: Option<u32>,
    /// Buffers for frames from the guest.
    pub from_guest: u32,
    /// Received frames ahead of the one that a guest looks at whose headers it fetches into the
    /// cache; 0: none.
    pub prefetch: u32,
}

impl Default for Buffers {
    // 1.5 MB in half pages: the buffers in use stay within a second-level cache. Towards the guest
    // there are as many as a wire may bring before a guest on a shared CPU has its turn.
    fn default() -> Self {
        Self {
            size: BufferSize::Half,
            to_guest: 512,
            spare: 0,
            release_threshold: None,
            from_guest: 256,
            prefetch: 64,
        }
    }
}

/// Rings of every vif.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Slots of each of the two rings: 256, 512, 1024, 2048 or 4096. A stock peer takes 256.
    pub slots: u32,
    /// How they lie in their pages.
    pub format: RingFormat,
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            slots: 1024,
            format: RingFormat::default(),
        }
    }
}

/// Slots of a ring of one page.
pub(crate) const SLOTS_PER_PAGE: u32 = 256;
