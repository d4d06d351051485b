//! The wire of `sim` and `soft` NICs: a cable in memory, with a TCP/IP station at its far end.
//!
//! Both ends are in the driver domain. The station has no thread: it works whenever the driver
//! polls the NIC.

use nic::sim::SimNic;
use nic::vmq::Vmq;
use nic::{Caps, Frame, Nic, Pool, TxReport};
use stack::StackEndpoint;

/// Maximum number of frames per turn of the station.
const BATCH: usize = 64;

/// The NIC at the near end of a cable, and the station behind the cable.
#[derive(Debug)]
pub struct Wire<N> {
    near: N,
    far: SimNic,
    station: StackEndpoint,
    pool: Pool,
    frames: Vec<Frame>,
    pick: Vec<u32>,
}

impl<N> Wire<N> {
    /// Puts `station` behind `far`, the other end of the cable of `near`. It uses buffers of
    /// `pool`.
    #[must_use]
    pub fn new(near: N, far: SimNic, station: StackEndpoint, pool: Pool) -> Self {
        Self {
            near,
            far,
            station,
            pool,
            frames: Vec::new(),
            pick: Vec::new(),
        }
    }

    /// Lets the station receive and send.
    fn work(&mut self, now_ns: u64) {
        let Self {
            far,
            station,
            pool,
            frames,
            pick,
            ..
        } = self;
        carry(far, station, now_ns, pool, frames, pick);
        carry(station, far, now_ns, pool, frames, pick);
    }
}

/// Forwards a batch from one device to another.
fn carry(
    from: &mut impl Nic,
    to: &mut impl Nic,
    now_ns: u64,
    pool: &mut Pool,
    frames: &mut Vec<Frame>,
    pick: &mut Vec<u32>,
) {
    from.rx(now_ns, BATCH, pool, frames);
    pick.clear();
    pick.extend(0..frames.len() as u32);
    to.tx(now_ns, frames, pick);
    for frame in &mut *frames {
        frame.recycle(pool);
    }
    frames.clear();
}

impl<N: Nic> Nic for Wire<N> {
    fn caps(&self) -> Caps {
        self.near.caps()
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn nic::Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        self.work(now_ns);
        self.near.rx(now_ns, budget, buffers, out)
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        self.near.tx(now_ns, frames, pick)
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        [
            self.near.next_due(now_ns),
            self.far.next_due(now_ns),
            self.station.next_due(now_ns),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.near.counters();
        all.extend(self.station.counters());
        all
    }

    fn release(&mut self, buffers: &mut dyn nic::Buffers) {
        self.near.release(buffers);
    }

    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        self.near.vmq()
    }
}

#[cfg(test)]
mod tests;
