//! What the bridge's ports have in common.

use crate::nics::NicPort;
use crate::vifs::VifPort;
use nic::{Caps, Frame};
use runtime::ledger::{Hop, Ledger};
use runtime::trace::Fate;
use serde::Serialize;

/// What a port has done, from the driver's point of view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Frames that came in by it.
    pub in_packets: u64,
    /// Their bytes.
    pub in_bytes: u64,
    /// Frames that went out by it.
    pub out_packets: u64,
    /// Their bytes.
    pub out_bytes: u64,
}

/// A port of the bridge. The bridge's number of a port is its place in the driver's list.
#[derive(Debug)]
pub enum Port {
    /// A device of the driver domain's own.
    Nic(Box<NicPort>),
    /// A guest.
    Vif(Box<VifPort>),
}

impl Port {
    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Nic(nic) => &nic.name,
            Self::Vif(vif) => &vif.name,
        }
    }

    /// What it can do by itself; none: frames cannot go out by it now.
    #[must_use]
    pub fn caps(&self) -> Option<Caps> {
        match self {
            Self::Nic(nic) => Some(nic.caps()),
            Self::Vif(vif) => vif.caps(),
        }
    }

    /// Where the driver's time goes that is spent on it.
    #[must_use]
    pub fn hop(&self) -> Hop {
        match self {
            Self::Nic(_) => Hop::Nic,
            Self::Vif(_) => Hop::Netback,
        }
    }

    /// What became of the frames given to it so far.
    #[must_use]
    pub fn fate(&self) -> Fate {
        match self {
            Self::Nic(nic) => Fate::of_device(&nic.sent),
            Self::Vif(vif) => Fate::of_guest(&vif.counters(), vif.not_connected),
        }
    }

    /// Frames for it that were made of larger ones because a guest had too little room.
    #[must_use]
    pub fn split(&self) -> u64 {
        match self {
            Self::Nic(_) => 0,
            Self::Vif(vif) => vif.split(),
        }
    }

    /// Takes up to `budget` frames that came in, and appends those that go on now; how many it
    /// had to do with. They belong to the port until [`Port::done`].
    pub fn take(
        &mut self,
        now_ns: u64,
        budget: usize,
        out: &mut Vec<Frame>,
        ledger: &Ledger,
    ) -> usize {
        match self {
            Self::Nic(nic) => nic.take(now_ns, budget, out, ledger),
            Self::Vif(vif) => vif.take(budget, out, ledger),
        }
    }

    /// The frames of the last [`Port::take`] are finished with.
    pub fn done(&mut self, frames: &mut Vec<Frame>, ledger: &Ledger) {
        match self {
            Self::Nic(nic) => nic.done(frames, ledger),
            Self::Vif(vif) => vif.done(frames, ledger),
        }
    }

    /// Sends those of `frames` whose indexes are in `pick`.
    pub fn give(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32], ledger: &Ledger) {
        match self {
            Self::Nic(nic) => nic.give(now_ns, frames, pick, ledger),
            Self::Vif(vif) => vif.give(frames, pick, ledger),
        }
    }
}
