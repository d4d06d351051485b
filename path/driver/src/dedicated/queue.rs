//! A guest's dedicated queue, of either kind.

use super::device::GuestDeviceQueue;
use super::socket::SocketQueue;
use abi::Handle;
use net::bridge::Count;
use nic::Frame;
use serde_json::Value;
use vif::grants::GrantMechanism;
use vif::netback::Netback;

/// One guest's queue.
#[derive(Debug)]
pub enum DedicatedQueue {
    /// A queue of an AF_XDP wire, whose frames the kernel writes.
    Socket(Box<SocketQueue>),
    /// A queue of a device in another domain, which writes the frames.
    Device(Box<GuestDeviceQueue>),
}

impl DedicatedQueue {
    /// Takes notice of a guest that has connected, with its table of counted grants.
    pub fn connected(&mut self, table: Handle) {
        match self {
            Self::Socket(_) => {}
            Self::Device(queue) => queue.connected(table),
        }
    }

    /// Records that the rule of this number may deny frames before the queue.
    pub fn count_denied(&mut self, rule: u32) {
        match self {
            Self::Socket(queue) => queue.count_denied(rule),
            // No rule applies before it.
            Self::Device(_) => {}
        }
    }

    /// Returns the denials before the queue by rule number.
    #[must_use]
    pub fn denied(&self) -> Vec<(u32, Count)> {
        match self {
            Self::Socket(queue) => queue.denied(),
            Self::Device(_) => Vec::new(),
        }
    }

    /// Returns the time at which the next poll is due even without a frame.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        match self {
            Self::Socket(queue) => queue.due_ns(now_ns),
            Self::Device(queue) => queue.due_ns(now_ns),
        }
    }

    /// Returns state and counters as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        match self {
            Self::Socket(queue) => queue.stat(),
            Self::Device(queue) => queue.stat(),
        }
    }

    /// Lends the guest's posted buffers to the device or the kernel.
    pub fn post_to_device<G: GrantMechanism>(&mut self, netback: &mut Netback<G>) {
        match self {
            Self::Socket(queue) => queue.post_to_device(netback),
            Self::Device(queue) => queue.post_to_device(netback),
        }
    }

    /// Appends up to `budget` frames that were received into the guest's pages to `out`; returns
    /// the number of completed buffers.
    pub fn receive<G: GrantMechanism>(
        &mut self,
        budget: usize,
        netback: &mut Netback<G>,
        out: &mut Vec<Frame>,
    ) -> usize {
        match self {
            Self::Socket(queue) => queue.receive(budget, netback, out),
            Self::Device(queue) => queue.receive(budget, netback, out),
        }
    }

    /// Ends the use of the queue by the connected guest.
    pub fn end(&mut self) {
        match self {
            Self::Socket(queue) => queue.end(),
            Self::Device(queue) => queue.end(),
        }
    }
}
