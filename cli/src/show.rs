//! Queries to a running machine.

use crate::{output, restore, tables};
use abi::machine::{DomainStatus, Program};
use abi::mailbox::MailboxRequest;
use anyhow::Context;
use client::{Instance, MetricsFormat};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tool::Failure;

/// Maximum time that `status` waits for a driver domain's warnings. A domain that hangs is shown
/// without them.
const STAT_TIMEOUT: Duration = Duration::from_millis(500);

/// Executes `grantway status`.
pub(crate) fn status(name: &str, as_json: bool) -> anyhow::Result<()> {
    let instance = Instance::connect(name)?;
    let status = instance.status()?;
    restore::warn_of_nat_faults(name, status.pid);
    let alive = || status.domains.iter().filter(|of| of.alive);
    let stat = |of: &DomainStatus| {
        let stat = instance.stat_within(&of.report.name, STAT_TIMEOUT);
        Some((of.report.name.clone(), stat.ok()?))
    };
    let drivers = alive().filter(|of| of.report.program == Program::Driver);
    let warnings = forged(drivers.filter_map(stat).map(|(_, stat)| stat));
    let shims = alive().filter(|of| of.serves_vm).filter_map(stat);
    let vms: Vec<Value> = shims.flat_map(|(name, stat)| vms(&name, &stat)).collect();
    if as_json {
        let mut status = serde_json::to_value(status)?;
        status["warnings"] = json!(warnings);
        status["vms"] = json!(vms);
        return output::json(&status);
    }
    let text = tables::status(&status) + &tables::virtual_machines(&vms);
    output::print(&(text + &tables::warnings(&warnings)))
}

/// Returns the state of a domain's virtual machines, from its counters.
fn vms(domain: &str, stat: &Value) -> Vec<Value> {
    let vifs = stat["vifs"].as_object().into_iter().flatten();
    let vm = |(name, vif): (&String, &Value)| {
        let of = &vif["endpoint"];
        let flag = |key: &str| of[key].as_u64().map(|value| value != 0);
        // All queues of an interface report the same state, so only the first one is used.
        let number = name.split('.').next().unwrap_or_default();
        Some(json!({
            "interface": format!("{domain}-{number}"),
            "connected": flag("vm_connected")?,
            "link_up": flag("vm_link_up")?,
            "features": of["vm_features"].as_u64()?,
            "mtu": of["vm_mtu"].as_u64()?,
            "queue_pairs": of["vm_queue_pairs"].as_u64()?,
        }))
    };
    vifs.filter_map(vm).collect()
}

/// Returns a sentence for each interface and each kind of forged frames, from the counters of all
/// driver domain workers.
fn forged(stats: impl Iterator<Item = Value>) -> Vec<String> {
    let mut found = BTreeMap::new();
    for stat in stats {
        let ports = stat["ports"].as_object();
        for (port, stat) in ports.into_iter().flatten() {
            for (reason, what) in stat["forged"].as_object().into_iter().flatten() {
                let what = format!("{port}: {}", what.as_str().unwrap_or_default());
                found.entry((port.clone(), reason.clone())).or_insert(what);
            }
        }
    }
    found.into_values().collect()
}

/// Executes `grantway grants`.
pub(crate) fn grants(name: &str, all: bool, as_json: bool) -> anyhow::Result<()> {
    let audit = Instance::connect(name)?.grants()?;
    if as_json {
        output::json(&serde_json::to_value(audit)?)
    } else {
        output::print(&tables::grants(&audit, all))
    }
}

/// Executes `grantway metrics`.
pub(crate) fn metrics(name: &str, openmetrics: bool, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        let text = "`metrics` has no JSON form; `grantway stat --json` prints the same counters";
        return Err(Failure::Usage(text.to_owned()).into());
    }
    let format = match openmetrics {
        true => MetricsFormat::OpenMetrics,
        false => MetricsFormat::Text,
    };
    let text = Instance::connect(name)?.metrics(format)?;
    output::print(&text)
}

/// Output format of counters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputForm {
    Lines,
    Table,
    Json,
}

impl OutputForm {
    /// Returns the format for the flags `--json` and `--table`.
    pub(crate) const fn of(json: bool, table: bool) -> Self {
        match (json, table) {
            (true, _) => Self::Json,
            (_, true) => Self::Table,
            _ => Self::Lines,
        }
    }
}

/// Executes `grantway stat`.
pub(crate) fn stat(
    name: &str,
    domain: Option<&str>,
    form: OutputForm,
    nonzero: bool,
) -> anyhow::Result<()> {
    let instance = Instance::connect(name)?;
    let domains = match domain {
        Some(domain) => vec![domain.to_owned()],
        None => {
            let domains = instance.status()?.domains;
            domains
                .into_iter()
                .filter(|d| d.alive)
                .map(|d| d.report.name)
                .collect()
        }
    };
    let mut stats = Map::new();
    for domain in domains {
        let mut stat = instance.stat(&domain)?;
        if nonzero {
            leave_out_zeros(&mut stat);
        }
        stats.insert(domain, stat);
    }
    let stats = Value::Object(stats);
    match form {
        OutputForm::Json => output::json(&stats),
        OutputForm::Lines => output::print(&tables::stat_lines(&stats)),
        OutputForm::Table => output::print(&tables::stat_table(&stats)),
    }
}

/// Removes zeros, and objects that become empty.
fn leave_out_zeros(value: &mut Value) {
    if let Value::Object(object) = value {
        object.values_mut().for_each(leave_out_zeros);
        object.retain(|_, value| match value {
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::Object(object) => !object.is_empty(),
            Value::Null => false,
            _ => true,
        });
    }
}

/// Executes `grantway restart`: restarts domains one after another.
pub(crate) fn restart(name: &str, domains: &[String], as_json: bool) -> anyhow::Result<()> {
    let instance = Instance::connect(name)?;
    for domain in domains {
        let restarted = instance.restart(domain)?;
        if as_json {
            output::json(&json!(restarted))?;
        } else {
            let ms = restarted.connected_ns as f64 / 1e6;
            output::print(&format!("{domain} is back after {ms:.1} ms\n"))?;
        }
    }
    Ok(())
}

/// Executes `grantway set`.
pub(crate) fn set(
    name: &str,
    domain: &str,
    key: &str,
    value: &str,
    as_json: bool,
) -> anyhow::Result<()> {
    let instance = Instance::connect(name)?;
    let request = MailboxRequest::Set {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    instance.relay(domain, &request).map_err(output::refused)?;
    if as_json {
        output::json(&json!({ "domain": domain, "key": key, "value": value }))
    } else {
        output::print(&format!("{domain}: {key} = {value}\n")).context("report")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_forgery_is_named_once() {
        let worker = json!({ "ports": {
            "nic.wire": { "traffic": {} },
            "vif.b-0": { "forged": { "forged_arp": "y" } },
            "vif.a-0": { "forged": { "forged_source": "x", "forged_dhcp": "z" } },
        }});
        let all = [worker.clone(), worker, json!({})];
        let said = ["vif.a-0: z", "vif.a-0: x", "vif.b-0: y"];
        assert_eq!(forged(all.into_iter()), said);
    }

    #[test]
    fn zeros_and_empty_objects_are_omitted() {
        let mut value = json!({
            "a": 0, "b": 1, "c": {"d": 0, "e": {"f": 0.0}}, "g": {"h": "x", "i": null}, "j": [0],
        });
        leave_out_zeros(&mut value);
        assert_eq!(value, json!({"b": 1, "g": {"h": "x"}, "j": [0]}));
    }
}
