//! The short way between an endpoint and the ring ([`nic::single`]), for endpoints that have one.

use super::{Interface, Yielded};
use runtime::ledger::{Hop, Ledger};
use runtime::trace::Trace;
use vif::Fatal;

impl Interface {
    /// Packets at the head of the ring to the endpoint; how many went so.
    ///
    /// # Errors
    /// The interface is disabled.
    pub(super) fn singles_to_guest(
        &mut self,
        now_ns: u64,
        budget: usize,
        ledger: &Ledger,
        trace: &Trace,
    ) -> Result<usize, Fatal> {
        let Self {
            netfront: Some(netfront),
            singles: pieces,
            ..
        } = self
        else {
            return Ok(0);
        };
        let Some(endpoint) = self.endpoint.singles() else {
            return Ok(0);
        };
        // What is followed, or merged first, has a record of its own.
        if trace.is_wanted() || self.lro.is_active() {
            return Ok(0);
        }
        let before = ledger.enter(Hop::Netfront);
        let received = netfront.receive_singles(budget, pieces);
        if !pieces.is_empty() {
            ledger.enter(Hop::Endpoint);
            self.given.add(&endpoint.tx_singles(now_ns, pieces));
            ledger.enter(Hop::Netfront);
            netfront.singles_done(pieces);
            self.touched = true;
        }
        ledger.enter(before);
        received
    }

    /// Whether what the endpoint yields goes the short way.
    pub(super) fn yields_singles(&mut self, trace: &Trace) -> bool {
        let waiting = !self.singles_to_send.is_empty();
        waiting
            || !trace.is_wanted() && self.to_send.is_empty() && self.endpoint.singles().is_some()
    }

    /// Frames from the endpoint to the ring.
    pub(super) fn send_singles(&mut self, now_ns: u64, budget: usize, ledger: &Ledger) -> Yielded {
        let mut yielded = Yielded::default();
        let Self {
            netfront: Some(netfront),
            singles_to_send: pieces,
            ..
        } = self
        else {
            return yielded;
        };
        if pieces.is_empty()
            && let Some(endpoint) = self.endpoint.singles()
        {
            yielded.taken = endpoint.rx_singles(now_ns, budget, netfront.buffers(), pieces);
        }
        let before = pieces.len();
        if before > 0 {
            ledger.enter(Hop::Netfront);
            yielded.fatal = netfront.transmit_singles(pieces).err();
        }
        yielded.moved = pieces.len() < before;
        yielded.waits = !pieces.is_empty();
        yielded
    }
}
