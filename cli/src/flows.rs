//! `grantway flows`: the flows of a guest or a NIC whose rules keep state.

use crate::{capture, output, tables};
use abi::mailbox::MailboxRequest;
use client::Instance;
use serde_json::{Value, json};
use tool::clean;

/// Executes `grantway flows`.
pub(crate) fn flows(name: &str, of: &str, as_json: bool) -> anyhow::Result<()> {
    let instance = Instance::connect(name)?;
    let mut flows = Vec::new();
    for driver in capture::drivers(&instance, of)? {
        let mut first = 0;
        loop {
            let of = of.to_owned();
            let mut some = instance.relay(&driver, &MailboxRequest::Flows { of, first })?;
            flows.append(some["flows"].as_array_mut().unwrap_or(&mut Vec::new()));
            match some["next"]
                .as_u64()
                .and_then(|next| u32::try_from(next).ok())
            {
                Some(next) if next > first => first = next,
                _ => break,
            }
        }
    }
    if as_json {
        output::json(&json!({ "flows": flows }))
    } else {
        output::print(&table(&flows))
    }
}

fn table(flows: &[Value]) -> String {
    let header = [
        "port", "protocol", "from", "to", "state", "age", "idle", "expires", "packets", "bytes",
    ];
    let mut table = tables::table(&header, 5);
    for flow in flows {
        let text = |key: &str| match &flow[key] {
            Value::String(text) => clean::line(text).into_owned(),
            other => other.to_string(),
        };
        let seconds = |key: &str| format!("{} s", text(key));
        let protocol = match &flow["echo"] {
            Value::Null => text("protocol"),
            id => format!("{} {id}", text("protocol")),
        };
        table.add_row([
            text("port"),
            protocol,
            text("from"),
            text("to"),
            text("state"),
            seconds("age_s"),
            seconds("idle_s"),
            seconds("expires_s"),
            text("packets"),
            text("bytes"),
        ]);
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_each_flow_in_a_line() {
        let flow = |protocol: &str, echo: Option<u16>| {
            json!({
                "port": "vif.web-0", "protocol": protocol, "direction": "from-guest",
                "from": "10.0.0.2:40000", "to": "10.0.0.1:443", "echo": echo,
                "state": "established\u{7}", "age_s": 12, "idle_s": 1, "expires_s": 7439,
                "packets": 10, "bytes": 900,
            })
        };
        let text = table(&[flow("tcp", None), flow("icmp", Some(77))]);
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[2].contains("10.0.0.2:40000") && lines[2].contains("7439 s"),
            "{text}"
        );
        assert!(
            lines[3].contains("icmp 77") && !text.contains('\u{7}'),
            "{text}"
        );
    }
}
