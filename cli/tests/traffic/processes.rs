//! Finds and kills the machine's processes.

use crate::machine::Machine;
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Returns the status of a domain.
pub(crate) fn domain(machine: &Machine, name: &str) -> Value {
    let status = machine.ask(&["status"]);
    let mut domains = status["domains"].as_array().unwrap().iter();
    domains
        .find(|domain| domain["name"] == name)
        .unwrap()
        .clone()
}

/// Returns the process id of a domain.
pub(crate) fn pid(machine: &Machine, name: &str) -> u64 {
    domain(machine, name)["pid"].as_u64().unwrap()
}

/// Kills a process. Returns whether it still existed.
pub(crate) fn kill(pid: u64) -> bool {
    let pid = pid.to_string();
    let kill = Command::new("kill").args(["-KILL", &pid]).status();
    kill.unwrap().success()
}

/// Returns the number of a process's open descriptors.
pub(crate) fn descriptors(pid: u64) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}
