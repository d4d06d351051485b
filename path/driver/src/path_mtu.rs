//! Errors to the senders of packets that exceed a NIC's MTU (`too_long`). Without these errors a
//! sender does not learn its path MTU, and its packets are lost.
//!
//! An error is created while its packet's memory is valid, and sent at the end of the round,
//! because its egress port may be in the middle of a batch.

use crate::ports::Port;
use net::bridge::MAX_PORTS;
use net::packet::ETHERNET_BYTES;
use net::packet::too_big::TooBig;
use nic::{Caps, Frame};
use serde_json::{Value, json};
use std::net::IpAddr;

/// Maximum number of errors that wait for the end of the round.
const WAITING_MAX: usize = 64;

/// Pending errors, and each port's rate limit.
#[derive(Debug, Default)]
pub struct PathMtu {
    /// By port.
    limits: Vec<TooBig>,
    /// The port of each error, and its frame.
    waiting: Vec<(usize, Vec<u8>)>,
}

impl PathMtu {
    /// Creates errors for those of `frames` that are too long for a port with these `caps`. The
    /// frames arrived by `in_port`, whose stations use `gateways`.
    #[cold]
    pub fn report<'a>(
        &mut self,
        (in_port, gateways): (usize, &[IpAddr]),
        frames: impl Iterator<Item = &'a Frame>,
        caps: Caps,
        now_ns: u64,
    ) {
        if in_port < MAX_PORTS && self.limits.len() <= in_port {
            self.limits.resize_with(in_port + 1, TooBig::default);
        }
        let Some(limit) = self.limits.get_mut(in_port) else {
            return;
        };
        let mtu = caps.max_frame.saturating_sub(ETHERNET_BYTES);
        for frame in frames {
            if self.waiting.len() >= WAITING_MAX {
                return;
            }
            if caps.is_too_long(frame) {
                let error = limit.answer(frame, mtu, gateways, now_ns);
                self.waiting.extend(error.map(|bytes| (in_port, bytes)));
            }
        }
    }

    /// Discards the state of a removed port: its limit, and its pending errors.
    pub fn remove(&mut self, port: usize) {
        if let Some(limit) = self.limits.get_mut(port) {
            limit.restart();
        }
        self.waiting.retain(|(to, _)| *to != port);
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

    /// Returns the numbers of errors created and of errors suppressed by the limit, as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        let sum = |of: fn(&TooBig) -> u64| self.limits.iter().map(of).sum::<u64>();
        json!({ "sent": sum(|it| it.sent), "limited": sum(|it| it.limited) })
    }
}

/// Returns the known routers of the stations behind a port. None are known behind a NIC, where the
/// senders may themselves be routers.
#[must_use]
pub fn gateways(port: Option<&Port>) -> &[IpAddr] {
    match port {
        Some(Port::Vif(vif)) => &vif.gateways,
        Some(Port::Nic(_)) | None => &[],
    }
}

#[cfg(test)]
mod tests;
