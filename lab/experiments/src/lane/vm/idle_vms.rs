//! Many idle virtual machines on one machine, each a front end in Rust behind a separate shim.

use crate::lane::running::Running;
use crate::many_guests::ms_since;
use crate::peers::process::{ForeignProgram, killed_with_parent, wait};
use figures::measure::CpuTimes;
use figures::stats::ranks;
use figures::{Failure, interrupt};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The program that is a virtual machine and its monitor.
const FRONT_END: &str = "hostile-vm";
/// The folder in which a running machine creates sockets.
const SOCKETS: &str = "/run/grantway/vhost";
/// Delay after the last connection, until the shims are idle.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// Length of the window that measures idle shims.
const IDLE_WINDOW: Duration = Duration::from_secs(2);

/// Returns the path of the front end.
///
/// # Errors
/// Returns [`Failure::CannotRun`] if it is not in the folder of this program.
fn front_end() -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(FRONT_END);
    if path.is_file() {
        return Ok(path);
    }
    let why = format!(
        "{} is missing; cargo build -p hostile builds it",
        path.display()
    );
    Err(Failure::CannotRun(why).into())
}

fn name(number: usize) -> String {
    format!("vm{number}")
}

/// Attaches virtual machines to a running machine one after another. Measures each attach, then the
/// idle shims.
///
/// # Errors
/// Returns [`Failure::CannotRun`] if the front end is missing, and another error if the machine
/// does not start or a virtual machine does not connect.
pub fn measure(vms: usize) -> anyhow::Result<BTreeMap<String, f64>> {
    let program = front_end()?;
    let machine = Running::start_live("idle-vms", "[driver]\n".to_owned())?;
    let (mut attach_ms, mut front_ends) = (Vec::new(), Vec::new());
    for number in 0..vms {
        interrupt::check()?;
        let socket = format!("{SOCKETS}/{}-{}", machine.name(), name(number));
        let guest = json!({ "name": name(number), "vif": [{
            "endpoint": "vhost-user",
            "socket": socket,
        }]});
        let began = Instant::now();
        machine.attach(guest)?;
        attach_ms.push(ms_since(began));
        let mut command = killed_with_parent(&program.display().to_string());
        let address = format!("10.7.{}.{}", number / 250, number % 250 + 1);
        front_ends.push(ForeignProgram::start(command.arg(&socket).arg(address))?);
    }
    for number in 0..vms {
        wait("a virtual machine's connection", || {
            let stat = machine.stat(&name(number))?;
            Ok(stat["vifs"]["0"]["endpoint"]["vm_connected"] == 1)
        })?;
    }
    interrupt::sleep(SETTLE_TIME)?;
    let mut shims = machine.status()?.domains;
    shims.retain(|domain| domain.serves_vm);
    let rss: Vec<f64> = shims
        .iter()
        .filter_map(|shim| resident_mb(shim.pid))
        .collect();
    let pids = shims.iter().flat_map(|shim| [shim.pid, shim.agent_pid]);
    let parts = [("guest", pids.filter(|pid| *pid > 0).collect())];
    let (before, began) = (CpuTimes::read(&parts), Instant::now());
    interrupt::sleep(IDLE_WINDOW)?;
    let used = CpuTimes::read(&parts).since(&before);
    let idle_ns = used.get("guest").copied().unwrap_or(0) as f64;
    let share = idle_ns / began.elapsed().as_nanos() as f64;
    // A shim that has exited would count as an idle one.
    let alive = shims.iter().filter(|shim| resident_mb(shim.pid).is_some());
    let counts = [shims.len(), rss.len(), alive.count()];
    anyhow::ensure!(
        counts == [attach_ms.len(); 3],
        "of {} shims, {counts:?} exist, report their memory, and still run",
        attach_ms.len()
    );
    drop(front_ends);
    machine.down()?;
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let figures = [
        ("attach_ms.p50", ranks(&attach_ms, [0.5, 0.99])[0]),
        ("attach_ms.max", most(&attach_ms)),
        ("shim_rss_mb.p50", ranks(&rss, [0.5, 0.99])[0]),
        ("shim_rss_mb.max", most(&rss)),
        ("idle_cpu", share / shims.len().max(1) as f64),
    ];
    Ok(figures.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Returns a process's resident memory in megabytes.
fn resident_mb(pid: i32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::resident_mb;

    #[test]
    fn this_process_has_resident_memory() {
        let own = std::process::id().cast_signed();
        assert!(resident_mb(own) > Some(0.0));
        assert_eq!(resident_mb(i32::MAX), None);
    }
}
