//! The wire of `sim` and `soft` NICs: a cable in memory with a TCP/IP station at the far end.
//!
//! Both ends are in the driver domain. The station has no thread: it runs when the driver polls the
//! NIC.

use nic::sim::SimNic;
use nic::vmq::Vmq;
use nic::{Caps, Frame, Nic, Pool, TxReport};
use stack::StackEndpoint;
use stack::cable::FarEnd;

/// The NIC at the near end of a cable, and the station behind the cable.
#[derive(Debug)]
pub struct SimWire<N> {
    near: N,
    far: FarEnd,
}

impl<N> SimWire<N> {
    /// Connects `station` to `far`, the other end of the cable of `near`. The station uses buffers
    /// of `pool`.
    #[must_use]
    pub fn new(near: N, far: SimNic, station: StackEndpoint, pool: Pool) -> Self {
        let far = FarEnd::new(far, station, pool);
        Self { near, far }
    }
}

impl<N: Nic> Nic for SimWire<N> {
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
        self.far.poll(now_ns);
        self.near.rx(now_ns, budget, buffers, out)
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        self.near.tx(now_ns, frames, pick)
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        let due = [self.near.next_due(now_ns), self.far.next_due(now_ns)];
        due.into_iter().flatten().min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.near.counters();
        all.extend(self.far.counters());
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
