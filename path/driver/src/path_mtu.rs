//! Errors to the senders of packets that exceed a NIC's MTU (`too_long`). Without these errors a
//! sender does not learn its path MTU, and its packets are lost.
//!
//! An error is created while its packet's memory is valid, and sent at the end of the round,
//! because its egress port may be in the middle of a batch.

use crate::ports::{BridgePort, BridgePorts};
use net::packet::ETHERNET_BYTES;
use net::packet::too_big::TooBig;
use nic::{Caps, Frame};
use serde_json::{Value, json};

/// Maximum number of errors that wait for the end of the round.
const WAITING_MAX: usize = 64;

/// Pending errors. Each port has a rate limit and counts.
#[derive(Debug, Default)]
pub struct PathMtu {
    /// The port of each error, and its frame.
    waiting: Vec<(usize, Vec<u8>)>,
    /// Errors of removed ports that were sent, and those that their limits suppressed.
    past: (u64, u64),
}

impl PathMtu {
    /// Creates errors for those of `frames` that are too long for a port with these `caps`. The
    /// frames arrived by port number `in_port`.
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

    /// Discards the pending errors of a port that is about to be removed.
    pub fn remove(&mut self, number: usize, ports: &BridgePorts) {
        self.waiting.retain(|(to, _)| *to != number);
        if let Some(port) = ports.get(number) {
            let too_big = &port.common().too_big;
            self.past.0 += too_big.sent;
            self.past.1 += too_big.limited;
        }
    }

    /// Returns whether no error is pending.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the pending errors.
    pub fn take(&mut self) -> Vec<(usize, Vec<u8>)> {
        std::mem::take(&mut self.waiting)
    }

    /// Returns the numbers of errors created and of errors suppressed by the limits, as JSON.
    #[must_use]
    pub fn stat(&self, ports: &BridgePorts) -> Value {
        let sum = |of: fn(&TooBig) -> u64| {
            let all = ports.iter().map(|(_, port)| of(&port.common().too_big));
            all.sum::<u64>()
        };
        json!({
            "sent": self.past.0 + sum(|it| it.sent),
            "limited": self.past.1 + sum(|it| it.limited),
        })
    }
}

#[cfg(test)]
mod tests;
