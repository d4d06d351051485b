//! A guest's dedicated queue of a device in another domain. The device writes received frames into
//! the guest's posted pages (`specs/dma.md`).
//!
//! The guest grants the pages of its receive pool for I/O. Once per connection, this domain
//! requests that the monitor share these pages with the device; after that, frames need no
//! hypercall. The driver can only pass I/O addresses to the device: the device cannot access a page
//! that the guest has not granted for I/O, or has revoked.
//!
//! | guest | link to the device | frames for the guest's MAC use |
//! |---|---|---|
//! | connected | up | the dedicated queue |
//! | not connected | up | the shared queue |
//! | any | down | no queue |

use super::lending::{Lending, RETRY_INTERVAL_NS, UNSUITABLE};
use abi::hypercall::ShareOp;
use abi::{ConnId, GrantStatus, Handle, Slot};
use config::domain::{DeviceQueueConfig, FRAME_EXTRA_BYTES};
use nic::dma::{IoAddr, ReceivedBuffer, RemoteQueue};
use nic::{Buffer, Frame, SmallBatch, SmallFrame};
use runtime::call::Calls;
use runtime::start::print_line;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use vif::grants::GrantMechanism;
use vif::netback::{Netback, Returned};

/// Maximum interval of attempts to start the queue of a device that does not respond.
const RETRY_INTERVAL_MAX_NS: u64 = 10_000_000;

/// A guest's dedicated queue of a device.
#[derive(Debug)]
pub struct GuestDeviceQueue {
    config: DeviceQueueConfig,
    mac: [u8; 6],
    queue: RemoteQueue,
    calls: Rc<RefCell<Calls>>,
    /// The grant table of the connected guest.
    table: Option<Handle>,
    /// The connection to the device for which this domain has requested that the monitor share the
    /// table.
    shared_on: Option<u32>,
    /// Number of contiguous bytes that a frame needs.
    frame_bytes: usize,
    lending: Lending,
    /// Interval of polling without a frame.
    retry_ns: u64,
    /// Reason why the guest cannot use the queue, as text.
    last_error: String,
}

impl GuestDeviceQueue {
    /// Creates the queue of the guest with this MAC.
    #[must_use]
    pub fn new(
        config: DeviceQueueConfig,
        mac: [u8; 6],
        mtu: u32,
        queue: RemoteQueue,
        calls: Rc<RefCell<Calls>>,
    ) -> Self {
        Self {
            lending: Lending::new(config.buffers as usize),
            config,
            mac,
            queue,
            calls,
            table: None,
            shared_on: None,
            frame_bytes: (mtu + FRAME_EXTRA_BYTES) as usize,
            retry_ns: RETRY_INTERVAL_NS,
            last_error: String::new(),
        }
    }

    /// Records that the guest has connected, with its table of counted grants.
    pub fn connected(&mut self, table: Handle) {
        self.table = Some(table).filter(|table| *table != Handle(0));
        self.shared_on = None;
        self.retry_ns = RETRY_INTERVAL_NS;
        self.last_error.clear();
    }

    /// Returns the time at which the driver must poll the queue even without a frame.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let waits = self.table.is_some() && self.last_error.is_empty();
        let starved = waits && self.queue.outstanding() == 0 && self.queue.is_up();
        starved.then(|| now_ns.saturating_add(self.retry_ns))
    }

    /// Returns whether the queue may receive the guest's frames.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.queue.is_started()
    }

    /// Returns state and counters as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        let counters = self.queue.counters();
        json!({
            "state": if self.queue.is_started() { "open" } else { "waiting" },
            "lent": self.queue.outstanding(),
            "trouble": self.last_error,
            "device": {
                "rx_io_error": counters.io_error,
                "rx_malformed": counters.malformed,
                "rx_foreign": counters.foreign,
            },
        })
    }

    /// Lends the guest's posted buffers to the device. Starts the queue first, if it has not
    /// started and can start.
    pub fn post_to_device<G: GrantMechanism>(&mut self, netback: &mut Netback<G>) {
        self.follow_link(netback);
        if !self.queue.is_started() && !self.start(netback) {
            return;
        }
        let Self { queue, config, .. } = self;
        let size = (queue.outstanding(), queue.free_entries());
        let lent = self.lending.lend(netback, size, |buffer| {
            let page = IoAddr::of_page(config.first_slot.saturating_add(buffer.entry));
            let (id, span) = (buffer.id, buffer.span);
            let address = page.add(buffer.offset.into());
            address.is_some_and(|at| queue.post(at, Buffer { id, span }))
        });
        if lent {
            self.queue.publish();
        }
    }

    /// If the device's connection has ended, returns the buffers that were lent to the device. The
    /// guest's pages can then be shared with the next device.
    fn follow_link<G: GrantMechanism>(&mut self, netback: &mut Netback<G>) {
        if self
            .shared_on
            .is_some_and(|at| at != self.queue.connection())
        {
            self.shared_on = None;
            self.retry_ns = RETRY_INTERVAL_NS;
            self.last_error.clear();
        }
        self.queue
            .sync_link(|id| netback.return_buffer(id, Returned::Unused));
    }

    /// Starts the queue if the guest and the device are ready. Returns whether it has started the
    /// queue.
    fn start<G: GrantMechanism>(&mut self, netback: &Netback<G>) -> bool {
        let Some(table) = self.table.filter(|_| self.last_error.is_empty()) else {
            return false;
        };
        if !self.queue.is_ready() {
            self.retry_ns = (2 * self.retry_ns).min(RETRY_INTERVAL_MAX_NS);
            return false;
        }
        self.retry_ns = RETRY_INTERVAL_NS;
        if !netback.can_post_to_device(self.frame_bytes) {
            self.fail(UNSUITABLE);
            return false;
        }
        let connection = self.queue.connection();
        if self.shared_on.replace(connection) != Some(connection)
            && let Err(why) = self.share(table)
        {
            self.fail(&format!(
                "the guest's pages cannot be shared with the device: {}",
                why.name()
            ));
            return false;
        }
        self.queue.start(self.mac, netback.takes_merged());
        true
    }

    fn fail(&mut self, why: &str) {
        why.clone_into(&mut self.last_error);
        print_line(format_args!("dedicated queue {}: {why}", self.config.queue));
    }

    /// Requests that the monitor map the guest's pages that are granted for I/O in the device's
    /// window.
    fn share(&self, table: Handle) -> Result<(), GrantStatus> {
        self.calls.borrow_mut().share_table(&ShareOp {
            table,
            conn: ConnId(self.config.conn),
            first: Slot(self.config.first_slot),
        })
    }

    /// Appends up to `budget` frames that the device has written into the guest's pages to `out`.
    /// Returns the number of buffers that the device has completed.
    pub fn receive<G: GrantMechanism>(
        &mut self,
        budget: usize,
        netback: &mut Netback<G>,
        out: &mut Vec<Frame>,
    ) -> usize {
        self.follow_link(netback);
        let queue = &mut self.queue;
        self.lending
            .receive(netback, |failed| queue.receive(budget, out, failed))
    }

    /// Receives up to `budget` small frames that `takes` accepts, with
    /// [`RemoteQueue::receive_small`].
    pub fn receive_small<G: GrantMechanism>(
        &mut self,
        budget: usize,
        netback: &mut Netback<G>,
        takes: impl Fn(&SmallFrame) -> bool,
        (frames, buffers): (&mut SmallBatch, &mut Vec<ReceivedBuffer>),
    ) {
        self.follow_link(netback);
        self.queue.receive_small(budget, takes, frames, buffers);
    }

    /// Returns whether the last call left frames in the queue.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.queue.has_more()
    }

    /// Stops the queue, because the guest's connection ends. The monitor unmaps the guest's pages
    /// from the device when the guest's table is released.
    pub fn end(&mut self) {
        self.queue.stop();
        self.table = None;
    }
}

#[cfg(test)]
mod tests;
