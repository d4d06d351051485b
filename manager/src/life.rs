//! One domain of the machine: its goal, its state, and its restarts.
//!
//! Every domain starts by the same steps: at the start of a machine, in an attach, after an exit of
//! the core, and in a restart. The server records the core's reports ([`Lifecycle::observe`]),
//! calls [`step()`] for the next request, carries it out, and records the result here.
//!
//! A domain that was up for [`STEADY_NS`] restarts immediately. A domain that exits earlier
//! restarts after a pause that doubles each time, up to the domain's limit, or up to
//! [`FAILED_PAUSE_NS`] if its starts keep failing. So a crash loop cannot keep the processors busy
//! with starts.

mod call;
mod step;
mod view;

pub(crate) use call::{CallState, WorkerCall};
pub(crate) use step::{LifeAction, LifeStep, step};
pub(crate) use view::{DomainView, StartStage, WorkerView};

use crate::build::{DeviceId, PendingGive, PendingOpen};
use crate::core::CoreError;
use abi::DomId;
use abi::core::Stage;
use abi::machine::{DomainStatus, Restarts};

/// Time after which a ready domain counts as steady, so that its next restart has no pause.
const STEADY_NS: u64 = 10_000_000_000;
/// Number of consecutive failed starts after which a requested restart counts as failed.
const FAILED_STARTS_MAX: u32 = 3;
/// Pause before the second of several consecutive starts. It doubles with each further start.
const FIRST_PAUSE_NS: u64 = 10_000_000;
/// Limit of the pause after more than [`FAILED_STARTS_MAX`] consecutive starts whose process was
/// never ready, if the domain's own limit is shorter.
const FAILED_PAUSE_NS: u64 = 5_000_000_000;
/// Maximum time that the kernel takes to release the devices of the previous process.
const RELEASE_NS: u64 = 1_000_000_000;
/// Like [`RELEASE_NS`], for a first start, which may need devices of a guest that is just being
/// removed. Longer, because a failed first start is not retried.
const REMOVAL_NS: u64 = 5_000_000_000;
/// Interval of attempts while a device or a page is busy.
const BUSY_RETRY_NS: u64 = 2_000_000;

/// The goal of a domain in the machine's specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Goal {
    #[default]
    /// The domain runs with all connections up.
    Up,
    /// The domain exits, and starts again when the goal is [`Goal::Up`].
    Held,
    /// The domain keeps running while netd opens the devices of its next process. This fails if
    /// the domain exits ([`DomainEvent::Failed`]). A domain that has already exited starts again
    /// when the goal is [`Goal::Up`].
    Refit,
    /// The domain and all its resources are removed.
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LifePhase {
    Up {
        since_ns: u64,
    },
    Down {
        died_ns: u64,
        start_ns: u64,
        /// Devices may be busy until this time.
        release_ns: u64,
    },
    Starting {
        died_ns: u64,
        /// Time at which the process reported that it is ready.
        ready_ns: Option<u64>,
    },
    /// The domain has exited and is not restarted.
    Dead,
}

/// The devices that netd has to open before the domain receives them.
#[derive(Debug, Default)]
pub(crate) enum NeededDevices {
    #[default]
    /// The manager has not requested them yet.
    Closed,
    /// These devices were busy and must be requested again. netd has opened the others.
    Busy(Vec<DeviceId>),
    /// Pending requests, and refusals so far.
    Opening(Vec<PendingOpen>, Vec<(DeviceId, CoreError)>),
    /// netd has opened them, or the domain runs without them.
    Open,
}

/// An event of a domain that the server handles.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DomainEvent {
    /// A line for the log.
    Line(String),
    /// The domain is up for the first time.
    Up,
    /// The first start or [`Goal::Refit`] failed, which is not retried here; `None` if the process
    /// has exited.
    Failed(Option<CoreError>),
    /// Every worker has carried out its call, or one has refused it.
    Called(Result<(), String>),
}

/// One domain.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    /// The domain's place in the machine.
    pub(crate) place: usize,
    pub(crate) goal: Goal,
    phase: LifePhase,
    /// Limit of the pause before a restart, unless starts keep failing; `None` if the domain is
    /// never restarted.
    pause_ns: Option<u64>,
    /// Restarts so far.
    pub(crate) known: Restarts,
    /// Whether the domain has never been up. A failure is then final.
    pub(crate) is_first: bool,
    pub(crate) devices: NeededDevices,
    /// The domain that this manager has built, and the number of devices that the domain has
    /// received.
    built: Option<DomId>,
    pub(crate) given: usize,
    /// The device that netd is opening for the domain.
    pub(crate) giving: Option<PendingGive>,
    /// Whether the core has the domain's connections. It preserves them over restarts.
    pub(crate) is_connected: bool,
    /// Calls to workers of the driver domain about this guest.
    pub(crate) calls: Vec<WorkerCall>,
    /// Reason why the last start failed.
    start_error: String,
    /// Consecutive starts whose process was never ready.
    failed_starts: u32,
    /// Whether a client requested the next start, which then has no pause.
    is_requested: bool,
    /// Reason why the current process must exit, until the core receives the request to kill it.
    pub(crate) end: Option<String>,
    /// Whether the core has forgotten the removed domain, and the time of the next request if not.
    is_forgotten: bool,
    forget_ns: u64,
}

impl Lifecycle {
    /// Returns the lifecycle of a domain that has never been started.
    pub(crate) fn new(place: usize, pause_ms: Option<u32>, now_ns: u64) -> Self {
        Self {
            place,
            phase: down(now_ns, now_ns, REMOVAL_NS),
            pause_ns: pause_ms.map(|ms| u64::from(ms) * 1_000_000),
            is_first: true,
            ..Self::default()
        }
    }

    /// Returns the lifecycle of an earlier manager's domain, according to its current stage.
    pub(crate) fn resume(
        place: usize,
        pause_ms: Option<u32>,
        known: Restarts,
        stage: Option<Stage>,
        now_ns: u64,
    ) -> Self {
        let phase = match stage {
            Some(Stage::Starting) => LifePhase::Starting {
                died_ns: now_ns,
                ready_ns: None,
            },
            Some(Stage::Running) => LifePhase::Up { since_ns: now_ns },
            // A domain that was only built may have received some of its devices, so it is built
            // again.
            _ if pause_ms.is_some() => down(now_ns, now_ns, RELEASE_NS),
            _ => LifePhase::Dead,
        };
        Self {
            phase,
            known,
            is_first: false,
            is_connected: true,
            ..Self::new(place, pause_ms, now_ns)
        }
    }

    /// Returns whether the domain restarts after it has exited.
    pub(crate) fn restarts(&self) -> bool {
        self.pause_ns.is_some() && !self.is_first && self.goal != Goal::Removed
    }

    /// Returns whether the domain's start is complete.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.phase, LifePhase::Up { .. })
    }

    /// Returns whether the manager has no work for the domain until the domain exits.
    pub(crate) fn is_settled(&self) -> bool {
        let is_final = matches!(self.phase, LifePhase::Up { .. } | LifePhase::Dead);
        let is_idle = self.end.is_none() && self.calls.iter().all(WorkerCall::is_done);
        self.goal == Goal::Up && is_final && is_idle
    }

    /// Begins to open devices of the next process. The current process keeps running.
    pub(crate) fn begin_refit(&mut self, devices: Vec<DeviceId>) {
        self.goal = Goal::Refit;
        self.devices = NeededDevices::Busy(devices);
    }

    /// Ends [`Goal::Refit`]: the devices are open, or no longer needed.
    pub(crate) fn end_refit(&mut self) {
        self.goal = Goal::Up;
        // The next start opens devices that have lost their interfaces.
        self.devices = NeededDevices::Closed;
    }

    /// Schedules the exit of the current process. The next one starts without a pause, when the
    /// goal is [`Goal::Up`].
    pub(crate) fn restart(&mut self, why: &str) {
        self.is_requested = true;
        if self.goal == Goal::Held {
            self.goal = Goal::Up;
        }
        self.end = Some(why.to_owned());
        // A domain that waits for its devices may have been built from another description.
        self.built = None;
        (self.known.in_a_row, self.failed_starts) = (0, 0);
        self.start_error.clear();
        if let LifePhase::Down { start_ns, .. } = &mut self.phase {
            *start_ns = 0;
        }
    }

    /// Schedules the removal of the domain. The requests `calls` make the workers release its
    /// ports.
    pub(crate) fn remove(&mut self, why: &str, calls: Vec<WorkerCall>) {
        self.goal = Goal::Removed;
        self.end = Some(why.to_owned());
        self.calls = calls;
    }

    /// Returns the tokens of all answers that the domain waits for.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = u32> {
        let opening = match &self.devices {
            NeededDevices::Opening(opening, _) => &opening[..],
            _ => &[],
        };
        let opening = opening.iter().map(|opening| opening.token);
        let giving = self.giving.iter().map(|giving| giving.token);
        let calls = self.calls.iter().filter_map(WorkerCall::token);
        opening.chain(giving).chain(calls)
    }

    /// Returns why a requested restart will not succeed soon, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        let ended = self.known.in_a_row > FAILED_STARTS_MAX;
        let ended = ended
            .then(|| format!("has exited {FAILED_STARTS_MAX} times immediately after its start"));
        let failure = || format!("did not start: {}", self.start_error);
        (!self.start_error.is_empty()).then(failure).or(ended)
    }

    /// Returns whether the last start failed. The exit of the remaining processes is then not
    /// reported.
    pub(crate) fn has_failed_to_start(&self) -> bool {
        !self.start_error.is_empty()
    }

    /// Adds restarts and the time of the next one to a domain's status.
    pub(crate) fn report(&self, status: &mut DomainStatus, now_ns: u64) {
        if !self.restarts() {
            return;
        }
        if let LifePhase::Down { start_ns, .. } = self.phase {
            let ms = start_ns.saturating_sub(now_ns) / 1_000_000;
            let state = &mut status.report.state;
            *state = format!("{state}; starts again in {ms} ms");
            if !self.start_error.is_empty() {
                *state = format!("{state}; did not start: {}", self.start_error);
            }
        }
        status.restarts = Some(self.known.clone());
    }

    /// Updates the phase from the core's report about the domain.
    pub(crate) fn observe(&mut self, view: &DomainView<'_>, now_ns: u64) -> Vec<DomainEvent> {
        if self.goal == Goal::Removed {
            return Vec::new();
        }
        let is_over = view.stage.is_some_and(Stage::is_over);
        match self.phase {
            LifePhase::Up { since_ns } if is_over => self.ended(now_ns, Some(since_ns), now_ns),
            LifePhase::Starting { died_ns, ready_ns } if is_over => {
                self.ended(died_ns, ready_ns, now_ns)
            }
            LifePhase::Starting { died_ns, ready_ns } => {
                self.connected(view, (died_ns, ready_ns), now_ns)
            }
            _ => Vec::new(),
        }
    }

    /// Records the exit of a process that was ready at `ready_ns`. The outage began at `died_ns`.
    fn ended(&mut self, died_ns: u64, ready_ns: Option<u64>, now_ns: u64) -> Vec<DomainEvent> {
        if self.is_first {
            self.phase = LifePhase::Dead;
            return vec![DomainEvent::Failed(None)];
        }
        let Some(limit_ns) = self.pause_ns else {
            self.phase = LifePhase::Dead;
            return Vec::new();
        };
        let is_steady = |ready_ns| now_ns.saturating_sub(ready_ns) >= STEADY_NS;
        if ready_ns.is_some_and(is_steady) {
            self.known.in_a_row = 0;
        }
        (self.known.ready_ns, self.known.connected_ns) = (None, None);
        if ready_ns.is_none() {
            self.failed_starts = self.failed_starts.saturating_add(1);
        }
        let mut events = self.pause(died_ns, limit_ns, now_ns);
        if self.goal == Goal::Refit {
            // The next process must not wait for netd.
            events.push(DomainEvent::Failed(None));
        }
        events
    }

    fn pause(&mut self, died_ns: u64, limit_ns: u64, now_ns: u64) -> Vec<DomainEvent> {
        let pause_ns = match std::mem::take(&mut self.is_requested) {
            true => 0,
            false => {
                let failed_starts = self.failed_starts.saturating_sub(FAILED_STARTS_MAX);
                pause_ns(self.known.in_a_row, limit_ns)
                    .max(pause_ns(failed_starts, FAILED_PAUSE_NS))
            }
        };
        self.known.in_a_row = self.known.in_a_row.saturating_add(1);
        self.phase = down(died_ns, now_ns.saturating_add(pause_ns), RELEASE_NS);
        // Devices that have lost their interfaces must be opened again.
        self.devices = NeededDevices::Closed;
        if pause_ns == 0 {
            return Vec::new();
        }
        let (ms, in_a_row) = (pause_ns / 1_000_000, self.known.in_a_row);
        let line = format!("starts again in {ms} ms: start {in_a_row} in a row");
        vec![DomainEvent::Line(line)]
    }

    /// Records that the new process is ready and that its connections are up.
    fn connected(
        &mut self,
        view: &DomainView<'_>,
        (died_ns, mut ready_ns): (u64, Option<u64>),
        now_ns: u64,
    ) -> Vec<DomainEvent> {
        let mut events = Vec::new();
        let away_ns = now_ns.saturating_sub(died_ns);
        let ms = away_ns as f64 / 1e6;
        if ready_ns.is_none() && view.stage == Some(Stage::Running) {
            ready_ns = Some(now_ns);
            self.failed_starts = 0;
            if !self.is_first {
                self.known.ready_ns = Some(away_ns);
                let count = self.known.count;
                let line = format!("started again (restart {count}): ready after {ms:.1} ms");
                events.push(DomainEvent::Line(line));
            }
        }
        self.phase = LifePhase::Starting { died_ns, ready_ns };
        let Some(since_ns) = ready_ns.filter(|_| view.is_connected) else {
            return events;
        };
        if !self.is_first {
            self.known.connected_ns = Some(away_ns);
            count_outage(&mut self.known, away_ns);
            events.push(DomainEvent::Line(format!(
                "connected again after {ms:.1} ms"
            )));
        } else if !self.calls.iter().all(WorkerCall::is_done) {
            return events;
        } else {
            self.is_first = false;
            events.push(DomainEvent::Up);
        }
        self.phase = LifePhase::Up { since_ns };
        events
    }

    /// Records netd's answers. The manager requests refused devices again for some time, because
    /// the kernel may not have released the devices of the previous process. After that time, a
    /// first start fails, and a restarted domain runs without these devices. A first start fails
    /// immediately if netd refuses a device that is not busy, and [`Goal::Refit`] if netd refuses
    /// any device.
    pub(crate) fn opened(
        &mut self,
        refused: Vec<(DeviceId, CoreError)>,
        now_ns: u64,
    ) -> Vec<DomainEvent> {
        self.devices = NeededDevices::Open;
        if refused.is_empty() || self.goal == Goal::Removed {
            return Vec::new();
        }
        let is_refit = self.goal == Goal::Refit;
        let is_final =
            |(_, refusal): &&(DeviceId, CoreError)| is_refit || self.is_first && !refusal.is_busy;
        let failure = refused.iter().find(is_final).or(refused.first());
        let failure = failure.filter(|_| is_refit || self.is_first).cloned();
        if self.is_releasing(now_ns) && !refused.iter().any(|one| is_final(&one)) {
            self.devices =
                NeededDevices::Busy(refused.into_iter().map(|(device, _)| device).collect());
            self.postpone(now_ns);
            return Vec::new();
        }
        if let Some((_, refusal)) = failure {
            return self.failed(refusal, now_ns);
        }
        let line = |(_, refusal): (DeviceId, CoreError)| {
            DomainEvent::Line(format!("runs without an interface: {}", refusal.why))
        };
        refused.into_iter().map(line).collect()
    }

    /// Records the reply to a call.
    pub(crate) fn replied(
        &mut self,
        number: usize,
        reply: Result<Vec<u8>, CoreError>,
        now_ns: u64,
    ) -> Vec<DomainEvent> {
        let must = self.goal == Goal::Removed;
        let Some(call) = self.calls.get_mut(number) else {
            return Vec::new();
        };
        match call.replied(reply, must, now_ns) {
            Err(why) if self.is_first => vec![DomainEvent::Failed(Some(why.into()))],
            Err(why) => vec![DomainEvent::Called(Err(why))],
            Ok(()) if !self.is_first && !must && self.calls.iter().all(WorkerCall::is_done) => {
                vec![DomainEvent::Called(Ok(()))]
            }
            Ok(()) => Vec::new(),
        }
    }

    /// Records that the core has built the domain.
    pub(crate) fn created(&mut self, id: DomId) {
        (self.built, self.given) = (Some(id), 0);
        // The reason concerned the previous process.
        self.end = None;
    }

    /// Records whether the domain received the device that netd opened for it.
    pub(crate) fn record_given(
        &mut self,
        given: Result<(), CoreError>,
        now_ns: u64,
    ) -> Vec<DomainEvent> {
        self.giving = None;
        if self.built.is_none() || self.goal == Goal::Removed {
            // The domain that needed the device no longer starts.
            return Vec::new();
        }
        match given {
            Ok(()) => self.given += 1,
            // The domain requests the device again when its goal is `Goal::Up`.
            Err(_) if self.goal == Goal::Refit => {}
            Err(refusal) => return self.failed(refusal, now_ns),
        }
        Vec::new()
    }

    /// Returns whether netd has opened the devices, or the domain runs without them.
    pub(crate) fn has_opened(&self) -> bool {
        matches!(self.devices, NeededDevices::Open)
    }

    /// Returns the stage that the first start of a domain with `devices` devices has reached.
    pub(crate) fn ready(&self, devices: usize) -> StartStage {
        match self.built {
            None => StartStage::Nothing,
            // Other domains receive parts of its devices.
            Some(_) if !self.is_connected || !self.has_opened() => StartStage::Built,
            Some(_) if self.given < devices => StartStage::Connected,
            Some(_) => StartStage::Given,
        }
    }

    /// Returns the number of earlier processes that had the domain's devices.
    pub(crate) fn previous_processes(&self) -> u64 {
        match self.is_first {
            true => 0,
            false => self.known.count + 1,
        }
    }

    /// Records that the process was started.
    pub(crate) fn started(&mut self, now_ns: u64) {
        self.start_error.clear();
        let died_ns = match self.phase {
            LifePhase::Down { died_ns, .. } => died_ns,
            _ => now_ns,
        };
        if !self.is_first {
            self.known.count += 1;
        }
        self.end = None;
        self.phase = LifePhase::Starting {
            died_ns,
            ready_ns: None,
        };
    }

    /// Delays the start for a short time.
    pub(crate) fn postpone(&mut self, now_ns: u64) {
        if let LifePhase::Down { start_ns, .. } = &mut self.phase {
            *start_ns = now_ns.saturating_add(BUSY_RETRY_NS).max(*start_ns);
        }
    }

    /// Records the core's answer to a request to forget the domain.
    pub(crate) fn record_forgotten(&mut self, is_busy: bool, now_ns: u64) {
        self.is_forgotten = !is_busy;
        self.forget_ns = now_ns.saturating_add(BUSY_RETRY_NS / 2);
    }

    fn is_releasing(&self, now_ns: u64) -> bool {
        matches!(self.phase, LifePhase::Down { release_ns, .. } if now_ns < release_ns)
    }

    /// Records that a request for the start was refused. A request for a busy resource is repeated.
    /// Otherwise a first start or [`Goal::Refit`] fails, and a restart is retried after a pause.
    pub(crate) fn failed(&mut self, refusal: CoreError, now_ns: u64) -> Vec<DomainEvent> {
        let is_refit = self.goal == Goal::Refit;
        if refusal.is_busy && self.is_releasing(now_ns) && !is_refit {
            self.postpone(now_ns);
            return Vec::new();
        }
        if self.is_first || is_refit {
            return vec![DomainEvent::Failed(Some(refusal))];
        }
        let mut events = Vec::new();
        if refusal.why != self.start_error {
            let line = format!("did not start again: {}", refusal.why);
            events.push(DomainEvent::Line(line));
        }
        self.end = Some(refusal.why.clone());
        self.start_error = refusal.why;
        self.built = None;
        if let (LifePhase::Down { died_ns, .. }, Some(limit_ns)) = (self.phase, self.pause_ns) {
            self.failed_starts = self.failed_starts.saturating_add(1);
            events.extend(self.pause(died_ns, limit_ns, now_ns));
        }
        events
    }
}

impl Default for LifePhase {
    fn default() -> Self {
        down(0, 0, RELEASE_NS)
    }
}

/// Returns the phase of a domain that starts at `start_ns` and whose devices may be busy for
/// another `release_ns`.
fn down(died_ns: u64, start_ns: u64, release_ns: u64) -> LifePhase {
    LifePhase::Down {
        died_ns,
        start_ns,
        release_ns: start_ns.saturating_add(release_ns),
    }
}

/// Counts an outage in its histogram class.
fn count_outage(known: &mut Restarts, took_ns: u64) {
    let ms = took_ns.div_ceil(1_000_000).max(1);
    let class = ms
        .checked_next_power_of_two()
        .map_or(u32::BITS, u64::trailing_zeros);
    let class = (class as usize).min(known.outages.len() - 1);
    if let Some(count) = known.outages.get_mut(class) {
        *count = count.saturating_add(1);
    }
    known.outages_ns = known.outages_ns.saturating_add(took_ns);
}

/// Returns the pause before a start that follows `in_a_row` consecutive starts.
fn pause_ns(in_a_row: u32, limit_ns: u64) -> u64 {
    match in_a_row {
        0 => 0,
        n => (FIRST_PAUSE_NS << (n - 1).min(30)).min(limit_ns),
    }
}

#[cfg(test)]
mod tests;
