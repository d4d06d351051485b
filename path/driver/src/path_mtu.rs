//! ICMP errors to the senders of packets that exceed a NIC's MTU (`too_long`). Without these
//! errors, a sender does not learn the path MTU, and its packets are lost.
//!
//! The driver creates an error while the packet's memory is valid. It sends the error at the end of
//! the round, because the egress port of the error may be processing a batch.

use crate::ports::{BridgePort, BridgePorts};
use net::packet::ETHERNET_BYTES;
use net::packet::too_big::TooBig;
use nic::{Caps, Frame};
use serde_json::{Value, json};

/// Maximum number of errors that wait for the end of a round.
const WAITING_MAX: usize = 64;

/// Pending errors. The rate limits and the counters are in the ports.
#[derive(Debug, Default)]
pub struct PathMtu {
    /// Egress port of each error, and its frame.
    waiting: Vec<(usize, Vec<u8>)>,
    /// Numbers of errors created for removed ports and of errors that these ports' rate limits
    /// suppressed.
    removed_ports: (u64, u64),
}

impl PathMtu {
    /// Creates errors for the frames of `frames` that are too long for a port with capabilities
    /// `caps`. `port` is port `in_port`, from which the frames were received.
    #[cold]
    pub fn report<'a>(
        &mut self,
        (in_port, port): (usize, &mut BridgePort),
        frames: impl Iterator<Item = &'a Frame>,
        caps: Caps,
        now_ns: u64,
    ) {
        let (common, gateways) = port.common_and_gateways();
        let mtu = caps.max_frame.saturating_sub(ETHERNET_BYTES);
        for frame in frames {
            if self.waiting.len() >= WAITING_MAX {
                return;
            }
            if caps.is_too_long(frame) {
                let error = common.too_big.answer(frame, mtu, gateways, now_ns);
                self.waiting.extend(error.map(|bytes| (in_port, bytes)));
            }
        }
    }

    /// Discards the pending errors to a port that is about to be removed.
    pub fn remove(&mut self, number: usize, ports: &BridgePorts) {
        self.waiting.retain(|(to, _)| *to != number);
        if let Some(port) = ports.get(number) {
            let too_big = &port.common().too_big;
            self.removed_ports.0 += too_big.sent;
            self.removed_ports.1 += too_big.limited;
        }
    }

    /// Returns whether no error is pending.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Removes and returns the pending errors, with their egress ports.
    pub fn take(&mut self) -> Vec<(usize, Vec<u8>)> {
        std::mem::take(&mut self.waiting)
    }

    /// Returns the numbers of errors created and of errors suppressed by the rate limits, as JSON.
    #[must_use]
    pub fn stat(&self, ports: &BridgePorts) -> Value {
        let sum = |of: fn(&TooBig) -> u64| {
            let all = ports.iter().map(|(_, port)| of(&port.common().too_big));
            all.sum::<u64>()
        };
        json!({
            "sent": self.removed_ports.0 + sum(|it| it.sent),
            "limited": self.removed_ports.1 + sum(|it| it.limited),
        })
    }
}

#[cfg(test)]
mod tests;
