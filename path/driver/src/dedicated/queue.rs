//! A guest's dedicated queue of either kind.

use super::device::GuestDeviceQueue;
use super::socket::SocketQueue;
use abi::Handle;
use net::bridge::RuleCount;
use nic::dma::ReceivedBuffer;
use nic::{Frame, SmallBatch, SmallFrame};
use serde_json::Value;
use vif::grants::GrantMechanism;
use vif::netback::Netback;

/// A guest's dedicated queue.
#[derive(Debug)]
pub enum DedicatedQueue {
    /// A queue of an AF_XDP wire. The kernel writes its frames.
    Socket(Box<SocketQueue>),
    /// A queue of a device in another domain. The device writes its frames.
    Device(Box<GuestDeviceQueue>),
}

impl DedicatedQueue {
    /// Records that the guest has connected, with its table of counted grants.
    pub fn connected(&mut self, table: Handle) {
        match self {
            Self::Socket(_) => {}
            Self::Device(queue) => queue.connected(table),
        }
    }

    /// Adds a rule, by number, by which the kernel may deny frames for this queue.
    pub fn count_denied(&mut self, rule: u32) {
        match self {
            Self::Socket(queue) => queue.count_denied(rule),
            // No rules apply to frames of a device.
            Self::Device(_) => {}
        }
    }

    /// Returns the counts of frames that the kernel has denied, by rule number.
    #[must_use]
    pub fn denied(&self) -> Vec<(u32, RuleCount)> {
        match self {
            Self::Socket(queue) => queue.denied(),
            Self::Device(_) => Vec::new(),
        }
    }

    /// Returns the time at which the driver must poll the queue even without a frame.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        match self {
            Self::Socket(queue) => queue.due_ns(now_ns),
            Self::Device(queue) => queue.due_ns(now_ns),
        }
    }

    /// Returns whether the queue may receive the guest's frames.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match self {
            Self::Socket(queue) => queue.is_open(),
            Self::Device(queue) => queue.is_open(),
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

    /// Lends the guest's posted buffers to the kernel or the device.
    pub fn post_to_device<G: GrantMechanism>(&mut self, netback: &mut Netback<G>) {
        match self {
            Self::Socket(queue) => queue.post_to_device(netback),
            Self::Device(queue) => queue.post_to_device(netback),
        }
    }

    /// Appends up to `budget` frames that were received into the guest's pages to `out`. Returns
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

    /// Receives up to `budget` small frames that `takes` accepts, as
    /// [`nic::dma::RemoteQueue::receive_small`] does; none from a queue of an AF_XDP wire.
    pub fn receive_small<G: GrantMechanism>(
        &mut self,
        budget: usize,
        netback: &mut Netback<G>,
        takes: impl Fn(&SmallFrame) -> bool,
        (frames, buffers): (&mut SmallBatch, &mut Vec<ReceivedBuffer>),
    ) {
        match self {
            Self::Socket(_) => {}
            Self::Device(queue) => {
                queue.receive_small(budget, netback, takes, (frames, buffers));
            }
        }
    }

    /// Returns whether the last call left frames in a device's queue.
    #[must_use]
    pub fn has_more(&self) -> bool {
        match self {
            Self::Socket(_) => false,
            Self::Device(queue) => queue.has_more(),
        }
    }

    /// Ends the use of the queue, because the guest's connection ends.
    pub fn end(&mut self) {
        match self {
            Self::Socket(queue) => queue.end(),
            Self::Device(queue) => queue.end(),
        }
    }
}
