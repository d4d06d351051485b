//! Egress policies of a pod and the addresses of a Service. The pod's rules decide before its node
//! translates these addresses.

use super::policy::{effect_delay, effect_delay_at, set};
use super::services::{SERVICE_PORT, cluster_ips, service};
use super::table::Table;
use crate::kubernetes::cluster::Cluster;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::net::IpAddr;

const SERVICE: &str = "policed";

/// Allows a pod egress to one address of a Service at a time, and then to the Service's pod by its
/// labels, which does not allow the Service's addresses.
pub(super) fn check(cluster: &Cluster, table: &Table) -> Result<String> {
    let (from, to) = (&table.pods[0], &table.pods[4]);
    cluster.put("services", &service(&to.namespace, SERVICE, &to.name))?;
    let ips = cluster_ips(cluster, &to.namespace, SERVICE)?;
    let expect =
        |ip: IpAddr, is_reached: bool| effect_delay_at(&from.netns, (ip, SERVICE_PORT), is_reached);
    for ip in ips {
        expect(ip, true).context("without a policy")?;
    }
    let allowing = |peer: Value| {
        let selector = json!({ "matchLabels": { "pod": from.name } });
        let spec = json!({
            "podSelector": selector, "policyTypes": ["Egress"], "egress": [{ "to": [peer] }],
        });
        [json!({ "namespace": from.namespace, "spec": spec })]
    };
    let mut before = Vec::new();
    for (allowed, denied) in [(ips[0], ips[1]), (ips[1], ips[0])] {
        let length = if allowed.is_ipv4() { 32 } else { 128 };
        let block = json!({ "ipBlock": { "cidr": format!("{allowed}/{length}") } });
        let policies = allowing(block);
        set(cluster, &before, &policies)?;
        expect(denied, false)?;
        expect(allowed, true)?;
        before = policies.to_vec();
    }
    let labels = json!({ "matchLabels": { "pod": to.name } });
    let policies = allowing(json!({ "namespaceSelector": {}, "podSelector": labels }));
    set(cluster, &before, &policies)?;
    for ip in ips {
        expect(ip, false).context("by the labels of its pods")?;
    }
    for ip in &to.ips {
        effect_delay(&from.netns, *ip, true)?;
    }
    set(cluster, &policies, &[])?;
    for ip in ips {
        expect(ip, true)?;
    }
    let path = format!("/api/v1/namespaces/{}/services/{SERVICE}", to.namespace);
    cluster.api.delete(&path)?;
    Ok("IPv4, IPv6; not by labels of its pods".to_owned())
}
