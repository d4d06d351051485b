//! A guest's dedicated queue of an AF_XDP wire: the kernel writes what comes by it into pages that
//! the guest has posted (`specs/xdp.md`).
//!
//! Which guest has which is fixed. A queue lives as long as the guest's first connection:
//!
//! | state | frames to the guest's MAC come by | the guest's requests |
//! |---|---|---|
//! | waiting | the shared queue | are the netback's |
//! | open | the queue | most are with the kernel; some stay for frames that are copied |
//! | over | the shared queue | are the netback's again, until the driver domain is a new one |
//!
//! Posted chunks cannot be taken back from a fill ring. So a queue ends with its socket: the
//! descriptor is closed here, and the monitor leads frames elsewhere, waits until none is on its
//! way, and takes the rings away. Only then the guest has its buffers back.

use crate::xdp;
use abi::PAGE;
use abi::xdp::{Counter, Ring, XdpControl};
use config::domain::{DedicatedQueue as Config, FRAME_EXTRA_BYTES};
use net::bridge::Count;
use nic::{Buffer, BufferId, Frame};
use nic_linux::xdp::{QueueParts, XdpQueue};
use runtime::platform::Platform;
use runtime::start::StartError;
use serde_json::{Value, json};
use shmem::Span;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use vif::grants::Grants;
use vif::netback::{Loan, Netback, Returned};

#[cfg(test)]
mod tests;

/// Requests that stay in the guest's ring for frames that are copied, of a pool that is large
/// enough.
const LEFT: usize = 64;
/// The kernel is lent so many at a time at least, but when it has none.
const BATCH: usize = 16;
/// While the kernel has none, new ones are looked for this often: the guest notifies of none.
const RETRY_NS: u64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Waiting,
    Open,
    Over,
}

/// The queue of one guest.
#[derive(Debug)]
pub struct DedicatedQueue {
    config: Config,
    platform: Rc<dyn Platform>,
    /// None: over.
    queue: Option<XdpQueue>,
    state: QueueState,
    /// Room that a frame needs in one piece.
    frame_bytes: usize,
    /// Chunks that the kernel has at the most.
    most: usize,
    /// Requests that stay in the guest's ring.
    left: usize,
    /// Rules by which the kernel denies frames, and what it has denied in the end.
    denied: Vec<(u32, Count)>,
    /// Why the guest has it not, for people.
    trouble: String,
    // Room for the work of a turn; empty in between.
    loans: Vec<Loan>,
    failed: Vec<BufferId>,
}

impl DedicatedQueue {
    /// The queue of a device whose descriptor is `fd`.
    ///
    /// # Errors
    /// The monitor has mapped no rings, or other ones.
    pub fn new(
        config: Config,
        fd: OwnedFd,
        mtu: u32,
        platform: &Rc<dyn Platform>,
    ) -> Result<Self, StartError> {
        const RINGS: [Ring; 2] = [Ring::Receive, Ring::Fill];
        let what = "the rings of a guest's own queue";
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
        let queue = XdpQueue::new(parts, kernel).ok_or(StartError::Damaged(
            "the rings of a guest's own queue do not fit their place",
        ))?;
        Ok(Self {
            config,
            platform: Rc::clone(platform),
            queue: Some(queue),
            state: QueueState::Waiting,
            frame_bytes: (mtu + FRAME_EXTRA_BYTES) as usize,
            most: chunks - chunks / 4,
            left: LEFT.min(chunks / 4),
            denied: Vec::new(),
            trouble: String::new(),
            loans: Vec::new(),
            failed: Vec::new(),
        })
    }

    /// The rule of this number may deny frames in the kernel.
    pub fn count_denied(&mut self, rule: u32) {
        self.denied.push((rule, Count::default()));
    }

    /// What each of these rules has denied in the kernel, by its number.
    #[must_use]
    pub fn denied(&self) -> Vec<(u32, Count)> {
        match self.queue {
            Some(_) if !self.denied.is_empty() => self.ask_denied(),
            _ => self.denied.clone(),
        }
    }

    fn ask_denied(&self) -> Vec<(u32, Count)> {
        let rules = || self.denied.iter().map(|(rule, _)| *rule);
        let asked = |rule| {
            [
                XdpControl::DeniedFrames(rule),
                XdpControl::DeniedBytes(rule),
            ]
        };
        let asked: Vec<_> = rules().flat_map(asked).map(XdpControl::encode).collect();
        let device = self.config.device;
        let told = self.platform.tell_all(device, &asked);
        let mut told = told.into_iter().map(|count| count.unwrap_or(0));
        let mut next = || told.next().unwrap_or(0);
        let count = |rule| {
            let (frames, bytes) = (next(), next());
            (rule, Count { frames, bytes })
        };
        rules().map(count).collect()
    }

    /// What each rule has denied in the end. Later there is no program left to ask.
    fn count_last(&mut self) {
        if self.denied.is_empty() {
            return;
        }
        // When this is answered nothing is counted any more: from now on the bridge denies.
        let (device, asked) = (self.config.device, XdpControl::Stop.encode());
        if let Err(why) = self.platform.tell(device, asked) {
            self.trouble = format!("what rules deny to the end is not all counted: {why}");
        }
        self.denied = self.ask_denied();
    }

    /// When it wants to be polled at although no frame may come.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let starved = self.queue.as_ref().is_some_and(|queue| queue.lent() == 0);
        (self.state == QueueState::Open && starved).then(|| now_ns.saturating_add(RETRY_NS))
    }

    /// What it does and has done, as JSON.
    #[must_use]
    pub fn stat(&self) -> Value {
        let state = match self.state {
            QueueState::Waiting => "waiting",
            QueueState::Open => "open",
            QueueState::Over => "over",
        };
        let counters = self.queue.as_ref().map(XdpQueue::counters);
        let counters: serde_json::Map<_, _> = counters
            .unwrap_or_default()
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect();
        json!({
            "state": state,
            "lent": self.queue.as_ref().map_or(0, XdpQueue::lent),
            "trouble": self.trouble,
            "device": counters,
        })
    }

    /// Lends the kernel what the guest has posted, and has frames come once it has some.
    pub fn lend<G: Grants>(&mut self, netback: &mut Netback<G>) {
        if self.state == QueueState::Over
            || self.state == QueueState::Waiting && !self.may_open(netback)
        {
            return;
        }
        let Some(queue) = &mut self.queue else { return };
        let room = self.most.saturating_sub(queue.lent()).min(queue.room());
        if room < BATCH && queue.lent() > 0 {
            return;
        }
        netback.lend(room, self.left, &mut self.loans);
        if self.loans.is_empty() {
            return;
        }
        for loan in self.loans.drain(..) {
            let Loan {
                id,
                frame,
                offset,
                span,
            } = loan;
            let offset = chunk(&self.config, frame, offset);
            if !offset.is_some_and(|offset| queue.lend(offset, Buffer { id, span })) {
                netback.give_back(id, Returned::Failed);
            }
        }
        queue.show();
        if self.state == QueueState::Waiting {
            self.open();
        }
    }

    fn may_open<G: Grants>(&mut self, netback: &Netback<G>) -> bool {
        let may = netback.can_lend(self.frame_bytes);
        if !may && self.trouble.is_empty() {
            self.trouble = "its frontend wants its buffers back in the order in which it posted \
                            them, or no offsets: it uses the shared queue"
                .into();
            runtime::start::print_line(format_args!(
                "queue of guest's own, device {}: {}",
                self.config.device, self.trouble
            ));
        }
        may
    }

    fn open(&mut self) {
        let asked = XdpControl::Enable.encode();
        match self.platform.tell(self.config.device, asked) {
            Ok(_) => self.state = QueueState::Open,
            Err(why) => self.trouble = format!("the monitor leads nothing to it: {why}"),
        }
    }

    /// Takes up to `budget` frames that have come into the guest's pages, and appends them to
    /// `out`; how many entries there were.
    pub fn receive<G: Grants>(
        &mut self,
        budget: usize,
        netback: &mut Netback<G>,
        out: &mut Vec<Frame>,
    ) -> usize {
        let Some(queue) = &mut self.queue else {
            return 0;
        };
        let taken = queue.receive(budget, out, &mut self.failed);
        for id in self.failed.drain(..) {
            netback.give_back(id, Returned::Failed);
        }
        taken
    }

    /// The end of it. When this returns the kernel writes nothing into the guest's pages any more.
    pub fn end(&mut self) {
        if self.queue.is_none() {
            return;
        }
        self.count_last();
        // The monitor looks whether the descriptor is gone.
        self.queue = None;
        self.state = QueueState::Over;
        let ended = self.platform.end(self.config.device);
        if let Err(why) = ended {
            // Then the monitor takes the pages away from the kernel one by one.
            self.trouble = format!("it did not end: {why}");
        }
    }
}

/// Where the buffer at `offset` of a guest's frame begins in the memory of the queue, if it does.
fn chunk(config: &Config, frame: u32, offset: u16) -> Option<usize> {
    let page = frame.checked_sub(config.first_frame);
    let page = page.filter(|&page| page < config.frames)?;
    Some(page as usize * PAGE + usize::from(offset))
}
