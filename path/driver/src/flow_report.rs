//! Answers requests for the flows of ports.

use crate::ports::{BridgePorts, belongs_to};
use config::rule::IpProtocol;
use net::bridge::{Bridge, Direction};
use net::flows::{FlowStatus, Flows};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};

/// Maximum number of flows in one answer. The answer must fit into the mailbox.
const FLOWS_MAX: usize = 1000;

/// Returns the flows of a NIC, of a guest, or of one interface of a guest, starting with flow
/// number `first`.
///
/// # Errors
/// Returns an error if no port of `of` has a flow table, because none has stateful rules.
pub fn flows(
    ports: &BridgePorts,
    bridge: &Bridge,
    of: &str,
    first: u32,
    now_ns: u64,
) -> Result<Value, String> {
    let selected = ports.iter().filter(|(_, port)| belongs_to(port.name(), of));
    let mut tables = selected.filter_map(|(number, port)| {
        let flows = bridge.flows(number)?;
        Some((port.name(), flows))
    });
    let mut tables = tables.by_ref().peekable();
    if tables.peek().is_none() {
        return Err(format!(
            "{of} has no stateful rules; set firewall = \"stateful\" or add a rule with `state`"
        ));
    }
    let all = tables.flat_map(|(name, flows)| flows.flows(now_ns).map(move |flow| (name, flow)));
    let rest = all.skip(first as usize);
    let mut some: Vec<Value> = rest
        .take(FLOWS_MAX + 1)
        .map(|(name, flow)| line(name, &flow))
        .collect();
    let next = (some.len() > FLOWS_MAX).then_some(first.saturating_add(FLOWS_MAX as u32));
    some.truncate(FLOWS_MAX);
    Ok(json!({ "flows": some, "next": next }))
}

fn line(port: &str, flow: &FlowStatus) -> Value {
    let (inside, outside) = match flow.ports {
        Some((own, other)) => (end(flow.inside, own), end(flow.outside, other)),
        None => (flow.inside.to_string(), flow.outside.to_string()),
    };
    let (from, to) = match flow.initiator {
        Direction::In => (inside, outside),
        Direction::Out => (outside, inside),
    };
    let direction = match (port.starts_with("vif."), flow.initiator) {
        (true, Direction::In) => "from-guest",
        (true, Direction::Out) => "to-guest",
        (false, Direction::In) => "from-wire",
        (false, Direction::Out) => "to-wire",
    };
    json!({
        "port": port,
        "protocol": IpProtocol(flow.protocol).to_string(),
        "direction": direction,
        "from": from,
        "to": to,
        "echo": flow.echo,
        "state": flow.phase.name(),
        "age_s": flow.age_s,
        "idle_s": flow.idle_s,
        "expires_s": flow.expires_s,
        "packets": flow.packets,
        "bytes": flow.bytes,
    })
}

fn end(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

/// Returns the counters of a port's flows as JSON.
#[must_use]
pub fn stat(flows: &Flows, now_ns: u64) -> Value {
    let totals = flows.totals();
    json!({
        "flows": flows.flows(now_ns).count(),
        "admitted": totals.admitted,
        "displaced": totals.displaced,
        "refused": totals.refused,
    })
}
