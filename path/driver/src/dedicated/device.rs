//! A guest's dedicated queue of a device in another domain: the device writes received frames into
//! the guest's posted pages (`specs/dma.md`).
//!
//! The guest grants the pages of its receive pool for I/O. This domain tells the monitor once per
//! connection which device may access them; after that, no frame takes a hypercall. The driver can
//! only name I/O addresses: a page that the guest has not granted for I/O, or has revoked, is out
//! of the device's reach.
//!
//! | the guest | the link to the device | frames for the guest's MAC use |
//! |---|---|---|
//! | is connected | is up | the dedicated queue |
//! | is not connected | is up | the shared queue |
//! | any | is down | none |

use super::lending::{Lending, RETRY_NS, UNSUITABLE};
use abi::hypercall::Share;
use abi::{ConnId, GrantStatus, Handle, Slot};
use config::domain::{DeviceQueueConfig, FRAME_EXTRA_BYTES};
use nic::dma::{IoAddr, RemoteQueue};
use nic::{Buffer, Frame};
use runtime::call::Calls;
use runtime::start::print_line;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use vif::grants::GrantMechanism;
use vif::netback::{Netback, Returned};

/// Longest time between two attempts to start the queue of a device that does not respond.
const RETRY_MAX_NS: u64 = 10_000_000;

/// One guest's queue.
#[derive(Debug)]
pub struct GuestDeviceQueue {
    config: DeviceQueueConfig,
    mac: [u8; 6],
    queue: RemoteQueue,
    calls: Rc<RefCell<Calls>>,
    /// The table of the connected guest.
    table: Option<Handle>,
    /// The link's connection for which the monitor was asked to share the table with the device.
    asked: Option<u32>,
    /// Contiguous bytes that a frame needs.
    frame_bytes: usize,
    lending: Lending,
    /// Time until the next poll without a frame.
    retry_ns: u64,
    /// Why the guest cannot use the queue, as text.
    trouble: String,
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
            asked: None,
            frame_bytes: (mtu + FRAME_EXTRA_BYTES) as usize,
            retry_ns: RETRY_NS,
            trouble: String::new(),
        }
    }

    /// Takes notice of a guest that has connected, with its table of counted grants.
    pub fn connected(&mut self, table: Handle) {
        self.table = Some(table).filter(|table| *table != Handle(0));
        self.asked = None;
        self.retry_ns = RETRY_NS;
        self.trouble.clear();
    }

    /// Returns the time at which the next poll is due even without a frame.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let waits = self.table.is_some() && self.trouble.is_empty();
        let starved = waits && self.queue.outstanding() == 0 && self.queue.is_up();
        starved.then(|| now_ns.saturating_add(self.retry_ns))
    }

    /// Returns state and counters as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        let counters = self.queue.counters();
        json!({
            "state": if self.queue.is_started() { "open" } else { "waiting" },
            "lent": self.queue.outstanding(),
            "trouble": self.trouble,
            "device": {
                "rx_io_error": counters.io_error,
                "rx_malformed": counters.malformed,
                "rx_foreign": counters.foreign,
            },
        })
    }

    /// Lends the device the guest's posted buffers, and starts the queue if it can be started.
    pub fn post_to_device<G: GrantMechanism>(&mut self, netback: &mut Netback<G>) {
        self.follow_link(netback);
        if !self.queue.is_started() && !self.start(netback) {
            return;
        }
        let Self { queue, config, .. } = self;
        let size = (queue.outstanding(), queue.room());
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

    /// Returns buffers that a dead device had. The guest's pages may be shared with the next one.
    fn follow_link<G: GrantMechanism>(&mut self, netback: &mut Netback<G>) {
        if self.asked.is_some_and(|at| at != self.queue.connection()) {
            self.asked = None;
            self.retry_ns = RETRY_NS;
            self.trouble.clear();
        }
        self.queue
            .follow_link(|id| netback.return_buffer(id, Returned::Unused));
    }

    /// Starts the queue if the device is ready. Returns whether it did.
    fn start<G: GrantMechanism>(&mut self, netback: &Netback<G>) -> bool {
        let Some(table) = self.table.filter(|_| self.trouble.is_empty()) else {
            return false;
        };
        if !self.queue.is_ready() {
            self.retry_ns = (2 * self.retry_ns).min(RETRY_MAX_NS);
            return false;
        }
        self.retry_ns = RETRY_NS;
        if !netback.can_post_to_device(self.frame_bytes) {
            self.fail(UNSUITABLE);
            return false;
        }
        let connection = self.queue.connection();
        if self.asked.replace(connection) != Some(connection)
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
        why.clone_into(&mut self.trouble);
        print_line(format_args!("dedicated queue {}: {why}", self.config.queue));
    }

    /// Has the monitor map the guest's pages that are granted for I/O in the device's window.
    fn share(&self, table: Handle) -> Result<(), GrantStatus> {
        self.calls.borrow_mut().share_table(&Share {
            table,
            conn: ConnId(self.config.conn),
            first: Slot(self.config.first_slot),
        })
    }

    /// Appends up to `budget` frames that were received into the guest's pages to `out`; returns
    /// the number of buffers that the device has completed.
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

    /// Stops the queue, because the guest's connection ends. The device loses the guest's pages
    /// with the guest's table.
    pub fn end(&mut self) {
        self.queue.stop();
        self.table = None;
    }
}

#[cfg(test)]
mod tests;
