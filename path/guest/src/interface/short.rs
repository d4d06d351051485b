//! The short way between an endpoint and the ring ([`nic::small_frame`]), for endpoints that have one.

use super::{Interface, Yielded};
use runtime::ledger::{Hop, Ledger};
use runtime::trace::Trace;
use vif::Fatal;

impl Interface {
    /// Packets at the head of the ring to the endpoint; how many went so.
    ///
    /// # Errors
    /// The interface is disabled.
    pub(super) fn small_frames_to_guest(
        &mut self,
        now_ns: u64,
        budget: usize,
        ledger: &Ledger,
        trace: &Trace,
    ) -> Result<usize, Fatal> {
        let Self {
            netfront: Some(netfront),
            small_frames: pieces,
            ..
        } = self
        else {
            return Ok(0);
        };
        let Some(endpoint) = self.endpoint.small_frames() else {
            return Ok(0);
        };
        // What is followed, or merged first, has a record of its own.
        if trace.is_wanted() || self.lro.is_active() {
            return Ok(0);
        }
        let before = ledger.enter(Hop::Netfront);
        let received = netfront.receive_small_frames(budget, pieces);
        if !pieces.is_empty() {
            ledger.enter(Hop::Endpoint);
            self.given.add(&endpoint.tx_small_frames(now_ns, pieces));
            ledger.enter(Hop::Netfront);
            netfront.small_frames_done(pieces);
            self.touched = true;
        }
        ledger.enter(before);
        received
    }

    /// Whether what the endpoint yields goes the short way.
    pub(super) fn yields_small_frames(&mut self, trace: &Trace) -> bool {
        let waiting = !self.small_frames_to_send.is_empty();
        waiting
            || !trace.is_wanted()
                && self.to_send.is_empty()
                && self.endpoint.small_frames().is_some()
    }

    /// Frames from the endpoint to the ring.
    pub(super) fn send_small_frames(
        &mut self,
        now_ns: u64,
        budget: usize,
        ledger: &Ledger,
    ) -> Yielded {
        let mut yielded = Yielded::default();
        let Self {
            netfront: Some(netfront),
            small_frames_to_send: pieces,
            ..
        } = self
        else {
            return yielded;
        };
        if pieces.is_empty()
            && let Some(endpoint) = self.endpoint.small_frames()
        {
            yielded.taken = endpoint.rx_small_frames(now_ns, budget, netfront.buffers(), pieces);
        }
        let before = pieces.len();
        if before > 0 {
            ledger.enter(Hop::Netfront);
            yielded.fatal = netfront.transmit_small_frames(pieces).err();
        }
        yielded.moved = pieces.len() < before;
        yielded.waits = !pieces.is_empty();
        yielded
    }
}
