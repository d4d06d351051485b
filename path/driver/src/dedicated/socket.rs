//! A guest's dedicated queue of an AF_XDP wire. The kernel writes received frames into the guest's
//! posted pages (`specs/xdp.md`).
//!
//! The assignment of queues to guests is fixed. A queue is open only during the guest's first
//! connection:
//!
//! | state | frames for the guest's MAC use | the guest's requests |
//! |---|---|---|
//! | waiting | the shared queue | belong to the netback |
//! | open | the queue | most are lent to the kernel; some remain for copied frames |
//! | over | the shared queue | belong to the netback again, until the driver domain restarts |
//!
//! Chunks cannot be removed from a fill ring. So the driver ends a queue by closing its socket. The
//! monitor then steers frames elsewhere, waits until no frame is in transit, and unmaps the rings.
//! Then the guest gets its buffers back.

use super::lending::{Lending, RETRY_INTERVAL_NS, UNSUITABLE};
use crate::xdp;
use abi::PAGE;
use abi::xdp::{Counter, Ring, XdpControl};
use config::domain::{DedicatedQueueConfig, FRAME_EXTRA_BYTES};
use net::bridge::RuleCount;
use nic::{Buffer, Frame};
use nic_linux::xdp::{DedicatedXdpQueue, QueueParts};
use runtime::platform::Platform;
use runtime::start::StartError;
use serde_json::{Value, json};
use shmem::Span;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use vif::grants::GrantMechanism;
use vif::netback::Netback;

#[cfg(test)]
mod tests;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Waiting,
    Open,
    Ended,
}

/// A guest's dedicated queue of an AF_XDP wire.
#[derive(Debug)]
pub struct SocketQueue {
    config: DedicatedQueueConfig,
    platform: Rc<dyn Platform>,
    /// The data path; `None` in [`QueueState::Ended`].
    queue: Option<DedicatedXdpQueue>,
    state: QueueState,
    /// Number of contiguous bytes that a frame needs.
    frame_bytes: usize,
    lending: Lending,
    /// Rules by which the kernel denies frames, by number, with their counts. The counts are set
    /// when the queue ends.
    denied: Vec<(u32, RuleCount)>,
    /// Reason why the guest cannot use the queue, as text.
    last_error: String,
}

impl SocketQueue {
    /// Opens the queue of a device whose descriptor is `fd`.
    ///
    /// # Errors
    /// Returns an error if the monitor has mapped no rings, or rings with an unexpected layout.
    pub fn new(
        config: DedicatedQueueConfig,
        fd: OwnedFd,
        mtu: u32,
        platform: &Rc<dyn Platform>,
    ) -> Result<Self, StartError> {
        const RINGS: [Ring; 2] = [Ring::Receive, Ring::Fill];
        let what = "the rings of a guest's dedicated queue";
        let layouts = xdp::layouts(what, config.device, RINGS, &**platform)?;
        let window = platform.window();
        let rings = xdp::rings(RINGS.len(), config.rings_slot, config.entries, window);
        let chunks = config.frames as usize * PAGE / config.chunk_bytes.max(1) as usize;
        let parts = QueueParts {
            fd,
            rings: rings.unwrap_or(Span::EMPTY),
            layouts,
            entries: config.entries,
            chunk_bytes: config.chunk_bytes as usize,
            chunks,
        };
        let kernel = xdp::kernel_counters(
            config.device,
            platform,
            &[Counter::Dropped, Counter::RingFull, Counter::FillEmpty],
        );
        let queue = DedicatedXdpQueue::new(parts, kernel).ok_or(StartError::BadStartInfo(
            "the rings of a guest's dedicated queue do not fit their place",
        ))?;
        Ok(Self {
            config,
            platform: Rc::clone(platform),
            queue: Some(queue),
            state: QueueState::Waiting,
            frame_bytes: (mtu + FRAME_EXTRA_BYTES) as usize,
            lending: Lending::new(chunks),
            denied: Vec::new(),
            last_error: String::new(),
        })
    }

    /// Adds a rule, by number, by which the kernel may deny frames.
    pub fn count_denied(&mut self, rule: u32) {
        self.denied.push((rule, RuleCount::default()));
    }

    /// Returns the counts of frames that the kernel has denied, by rule number.
    #[must_use]
    pub fn denied(&self) -> Vec<(u32, RuleCount)> {
        match self.queue {
            Some(_) if !self.denied.is_empty() => self.read_denied(),
            _ => self.denied.clone(),
        }
    }

    fn read_denied(&self) -> Vec<(u32, RuleCount)> {
        let rules = || self.denied.iter().map(|(rule, _)| *rule);
        let requests = |rule| {
            [
                XdpControl::DeniedFrames(rule),
                XdpControl::DeniedBytes(rule),
            ]
        };
        let requests: Vec<_> = rules().flat_map(requests).map(XdpControl::encode).collect();
        let device = self.config.device;
        let answers = self.platform.device_control_all(device, &requests);
        let mut answers = answers.into_iter().map(|count| count.unwrap_or(0));
        let mut next = || answers.next().unwrap_or(0);
        let count = |rule| {
            let (frames, bytes) = (next(), next());
            (rule, RuleCount { frames, bytes })
        };
        rules().map(count).collect()
    }

    /// Reads the final counts of denied frames, before the monitor removes the kernel's program.
    fn read_final_denied(&mut self) {
        if self.denied.is_empty() {
            return;
        }
        // After the answer, the kernel denies no frames, and the bridge applies the rules instead.
        let (device, requests) = (self.config.device, XdpControl::Stop.encode());
        if let Err(why) = self.platform.device_control(device, requests) {
            self.last_error =
                format!("the last frames that the kernel denied are not counted: {why}");
        }
        self.denied = self.read_denied();
    }

    /// Returns the time at which the driver must poll the queue even without a frame.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let starved = self
            .queue
            .as_ref()
            .is_some_and(|queue| queue.outstanding() == 0);
        (self.state == QueueState::Open && starved)
            .then(|| now_ns.saturating_add(RETRY_INTERVAL_NS))
    }

    /// Returns whether the queue may receive the guest's frames.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == QueueState::Open
    }

    /// Returns state and counters as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        let state = match self.state {
            QueueState::Waiting => "waiting",
            QueueState::Open => "open",
            QueueState::Ended => "over",
        };
        let counters = self.queue.as_ref().map(DedicatedXdpQueue::counters);
        let counters: serde_json::Map<_, _> = counters
            .unwrap_or_default()
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect();
        json!({
            "state": state,
            "lent": self.queue.as_ref().map_or(0, DedicatedXdpQueue::outstanding),
            "trouble": self.last_error,
            "device": counters,
        })
    }

    /// Lends the guest's posted buffers to the kernel. Opens the queue once the kernel has at least
    /// one buffer.
    pub fn post_to_device<G: GrantMechanism>(&mut self, netback: &mut Netback<G>) {
        if self.state == QueueState::Ended
            || self.state == QueueState::Waiting && !self.may_open(netback)
        {
            return;
        }
        let Some(queue) = &mut self.queue else { return };
        let (config, size) = (&self.config, (queue.outstanding(), queue.free_entries()));
        let lent = self.lending.lend(netback, size, |buffer| {
            let (id, span) = (buffer.id, buffer.span);
            let place = chunk(config, buffer.frame, buffer.offset);
            place.is_some_and(|place| queue.post(place, Buffer { id, span }))
        });
        if !lent {
            return;
        }
        queue.publish();
        if self.state == QueueState::Waiting {
            self.open();
        }
    }

    fn may_open<G: GrantMechanism>(&mut self, netback: &Netback<G>) -> bool {
        let may = netback.can_post_to_device(self.frame_bytes);
        if !may && self.last_error.is_empty() {
            self.last_error = UNSUITABLE.into();
            runtime::start::print_line(format_args!(
                "dedicated queue, device {}: {}",
                self.config.device, self.last_error
            ));
        }
        may
    }

    fn open(&mut self) {
        let requests = XdpControl::Enable.encode();
        match self.platform.device_control(self.config.device, requests) {
            Ok(_) => self.state = QueueState::Open,
            Err(why) => self.last_error = format!("the monitor does not steer frames to it: {why}"),
        }
    }

    /// Appends up to `budget` frames that the kernel has written into the guest's pages to `out`.
    /// Returns the number of ring entries taken.
    pub fn receive<G: GrantMechanism>(
        &mut self,
        budget: usize,
        netback: &mut Netback<G>,
        out: &mut Vec<Frame>,
    ) -> usize {
        let Some(queue) = &mut self.queue else {
            return 0;
        };
        self.lending
            .receive(netback, |failed| queue.receive(budget, out, failed))
    }

    /// Ends the queue. Afterwards, the kernel does not write to the guest's pages.
    pub fn end(&mut self) {
        if self.queue.is_none() {
            return;
        }
        self.read_final_denied();
        // Dropping the queue closes the descriptor, which the monitor requires.
        self.queue = None;
        self.state = QueueState::Ended;
        let ended = self.platform.end(self.config.device);
        if let Err(why) = ended {
            // The monitor then revokes the pages from the kernel one by one.
            self.last_error = format!("the queue did not end: {why}");
        }
    }
}

/// Returns the position in the queue's memory of the buffer at `offset` in page frame `frame`, if
/// the frame belongs to this memory.
fn chunk(config: &DedicatedQueueConfig, frame: u32, offset: u16) -> Option<usize> {
    let page = frame.checked_sub(config.first_frame);
    let page = page.filter(|&page| page < config.frames)?;
    Some(page as usize * PAGE + usize::from(offset))
}
