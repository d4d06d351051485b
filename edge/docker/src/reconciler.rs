//! Repairs: reattaches guests that a machine has lost, and removes endpoints whose end Docker does
//! not report.

use crate::api::Id;
use crate::attach::AttachState;
use crate::driver::{RemoteDriver, SharedEndpoint, log_failure};
use cni::attachment::{MachineInfo, machine_info};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Pause between two rounds.
const ROUND: Duration = Duration::from_secs(1);
/// Longest pause between two attempts to attach a guest that the machine rejects.
const PAUSE_MAX: Duration = Duration::from_secs(32);
/// Number of rounds after which an endpoint is removed if its namespace has disappeared.
const ABSENT_MAX: u32 = 2;
/// Number of rounds after which an endpoint is removed if Docker has not created its namespace.
const AWAITED_MAX: u32 = 600;

/// Observations of an endpoint in earlier rounds.
#[derive(Debug, Default)]
struct EndpointHistory {
    /// Number of consecutive rounds in which its namespace did not exist.
    absent: u32,
    /// Pause before the next attempt, and the time of that attempt.
    retry: Option<(Duration, Instant)>,
}

/// Repairs networks and endpoints until the process exits.
pub fn reconcile(driver: &Arc<RemoteDriver>) {
    let mut history = BTreeMap::new();
    loop {
        thread::sleep(ROUND);
        round(driver, &mut history);
    }
}

fn round(driver: &RemoteDriver, history: &mut BTreeMap<Id, EndpointHistory>) {
    let all = driver.all();
    let before = std::mem::take(history);
    let known = |(id, _): &(Id, EndpointHistory)| all.iter().any(|(other, _)| other == id);
    history.extend(before.into_iter().filter(known));
    let mut machines = BTreeMap::new();
    for (id, slot) in all {
        let history = history.entry(id.clone()).or_default();
        reconcile_endpoint(driver, &id, &slot, history, &mut machines);
    }
}

/// Repairs an endpoint. A machine that does not answer is queried only once per round.
fn reconcile_endpoint(
    driver: &RemoteDriver,
    id: &Id,
    slot: &SharedEndpoint,
    history: &mut EndpointHistory,
    machines: &mut BTreeMap<String, Option<MachineInfo>>,
) {
    let Ok(mut endpoint) = slot.try_lock() else {
        return; // A call or a watcher is busy with it.
    };
    let Some(joined) = &endpoint.joined else {
        return;
    };
    let absent_max = match joined.placed {
        Some(_) => ABSENT_MAX,
        None => AWAITED_MAX,
    };
    let conf = driver.conf(&endpoint);
    let key = format!("{}{}", conf["machine"], conf["socket"]);
    let machine = machines
        .entry(key)
        .or_insert_with(|| machine_info(&conf).ok());
    let is_due = history.retry.is_none_or(|(_, at)| at <= Instant::now());
    let is_absent = !std::path::Path::new(&joined.sandbox).exists();
    let placed = match machine {
        _ if is_absent => Ok(AttachState::Absent),
        Some(machine) if is_due => driver.attach_if_moved(id, &mut endpoint, Some(machine)),
        _ => return,
    };
    drop(endpoint);
    history.absent = match placed {
        Ok(AttachState::Absent) => history.absent + 1,
        _ => 0,
    };
    match placed {
        Ok(_) => history.retry = None,
        Err(error) => {
            let pause = history
                .retry
                .map_or(ROUND, |(pause, _)| PAUSE_MAX.min(2 * pause));
            history.retry = Some((pause, Instant::now() + pause));
            log_failure("a container has no network", Err(error));
        }
    }
    if history.absent >= absent_max {
        driver.forget(id, slot);
    }
}
