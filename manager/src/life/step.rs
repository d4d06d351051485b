//! The next request for a domain: a pure function of its goal and its state.

use super::view::{DomainView, StartStage, WorkerView};
use super::{CallState, Goal, LifePhase, Lifecycle, NeededDevices};
use abi::core::Stage;

/// A request to the core, to netd through the core, or to a worker through its mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeAction {
    /// Asks netd to open the devices that outlive the domain's processes.
    Open,
    /// Builds the domain. The new domain replaces a dead one.
    Create,
    Connect,
    /// Gives the domain its devices, up to the next device that netd must open first.
    Give,
    Start,
    /// Sends the call with this number.
    Call(usize),
    /// Drops the call with this number: its worker is dead.
    Drop(usize),
    /// Kills the process, or releases the resources that were built for it.
    End,
    /// Asks the core to forget the domain.
    Forget,
    /// Closes the devices, the domain's last resources.
    Close,
}

/// The result of [`step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeStep {
    Do(LifeAction),
    /// Waits for the next event, or until a time.
    Wait(Option<u64>),
}

/// Returns the next step for a domain.
pub(crate) fn step(life: &Lifecycle, view: &DomainView<'_>, now_ns: u64) -> LifeStep {
    let is_down = matches!(life.phase, LifePhase::Down { .. });
    match life.goal {
        Goal::Removed => remove(life, view, now_ns),
        _ if life.end.is_some() && can_end(life, view) => LifeStep::Do(LifeAction::End),
        Goal::Held => LifeStep::Wait(None),
        Goal::Refit => match life.devices {
            NeededDevices::Busy(_) => LifeStep::Do(LifeAction::Open),
            _ => LifeStep::Wait(None),
        },
        Goal::Up => {
            // The workers add a new guest only after it has its connections.
            let is_early = is_down && life.is_first;
            let calls = calls(life, view, now_ns).filter(|_| !is_early);
            let start = match is_down {
                true => start(life, view, now_ns),
                false => LifeStep::Wait(None),
            };
            match (calls.unwrap_or(LifeStep::Wait(None)), start) {
                (LifeStep::Wait(one), LifeStep::Wait(other)) => {
                    LifeStep::Wait(one.into_iter().chain(other).min())
                }
                (LifeStep::Wait(_), start) => start,
                (call, _) => call,
            }
        }
    }
}

/// Returns whether the domain has a process or resources that [`LifeAction::End`] removes.
fn can_end(life: &Lifecycle, view: &DomainView<'_>) -> bool {
    match view.stage {
        Some(Stage::Starting | Stage::Running) => true,
        Some(Stage::Built) => matches!(life.phase, LifePhase::Down { .. }),
        Some(Stage::Ending | Stage::TornDown) | None => false,
    }
}

fn start(life: &Lifecycle, view: &DomainView<'_>, now_ns: u64) -> LifeStep {
    let LifePhase::Down { start_ns, .. } = life.phase else {
        return LifeStep::Wait(None);
    };
    let is_own = life.built.is_some() && life.built == view.id;
    match view.stage {
        Some(Stage::Starting | Stage::Running | Stage::Ending) => return LifeStep::Wait(None),
        _ if now_ns < start_ns => return LifeStep::Wait(Some(start_ns)),
        // It is unknown which devices an earlier manager gave to the domain.
        Some(Stage::Built) if !is_own => return LifeStep::Do(LifeAction::End),
        _ => {}
    }
    if life.giving.is_some() {
        return LifeStep::Wait(None);
    }
    if matches!(life.devices, NeededDevices::Closed | NeededDevices::Busy(_)) {
        return LifeStep::Do(LifeAction::Open);
    }
    if view.stage != Some(Stage::Built) {
        return LifeStep::Do(LifeAction::Create);
    }
    if !life.is_connected {
        return if_ready(view.ready >= StartStage::Built, LifeAction::Connect);
    }
    if matches!(life.devices, NeededDevices::Opening(..)) {
        return LifeStep::Wait(None);
    }
    match life.given < view.devices {
        true => if_ready(view.ready >= StartStage::Connected, LifeAction::Give),
        false => if_ready(view.ready >= StartStage::Given, LifeAction::Start),
    }
}

fn if_ready(is_ready: bool, action: LifeAction) -> LifeStep {
    match is_ready {
        true => LifeStep::Do(action),
        false => LifeStep::Wait(None),
    }
}

/// Returns the next step for the calls to workers; `None` if all are done.
fn calls(life: &Lifecycle, view: &DomainView<'_>, now_ns: u64) -> Option<LifeStep> {
    let pending = life.calls.iter().enumerate();
    let mut pending = pending.filter(|(_, call)| !call.is_done()).peekable();
    pending.peek()?;
    let mut wake_ns: Option<u64> = None;
    for (number, call) in pending {
        let worker = view.workers.get(&call.worker).copied();
        match (worker.unwrap_or(WorkerView::Dead), call.state) {
            (WorkerView::Dead, _) if life.goal == Goal::Removed => {
                return Some(LifeStep::Do(LifeAction::Drop(number)));
            }
            (WorkerView::Running, CallState::Due(at)) if now_ns >= at => {
                return Some(LifeStep::Do(LifeAction::Call(number)));
            }
            (WorkerView::Running, CallState::Due(at)) => {
                wake_ns = Some(wake_ns.map_or(at, |wake| wake.min(at)));
            }
            _ => {}
        }
    }
    Some(LifeStep::Wait(wake_ns))
}

fn remove(life: &Lifecycle, view: &DomainView<'_>, now_ns: u64) -> LifeStep {
    if life.end.is_some() {
        return LifeStep::Do(LifeAction::End);
    }
    if let Some(next) = calls(life, view, now_ns) {
        return next;
    }
    if matches!(life.devices, NeededDevices::Opening(..)) || life.giving.is_some() {
        return LifeStep::Wait(None);
    }
    match view.stage {
        _ if life.is_forgotten => LifeStep::Do(LifeAction::Close),
        None => LifeStep::Do(LifeAction::Close),
        Some(Stage::TornDown) if now_ns < life.forget_ns => LifeStep::Wait(Some(life.forget_ns)),
        Some(Stage::TornDown) => LifeStep::Do(LifeAction::Forget),
        Some(_) => LifeStep::Wait(None),
    }
}
