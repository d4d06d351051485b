//! Changes of network policies, and the time until they take effect.

use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::space::Netns;
use crate::kubernetes::traffic::connects;
use crate::kubernetes::waiting::RemainingTime;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Deadline for a policy's effect.
pub(super) const EFFECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of consecutive failures that proves that connections are blocked. A single failure may
/// only mean that the connection is slow.
const FAILURES_MIN: usize = 3;

/// Returns the path of the policies of a policy's namespace.
pub(super) fn path(policy: &Value) -> String {
    let namespace = policy["namespace"].as_str().unwrap_or_default();
    format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")
}

/// Creates or changes a policy, which has `namespace` and `spec`.
pub(super) fn put(cluster: &Cluster, name: &str, policy: &Value) -> Result<()> {
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": policy["namespace"] },
        "spec": policy["spec"],
    });
    let path = format!("{}/{name}", path(policy));
    cluster.api.apply(&path, &object)?;
    Ok(())
}

/// Replaces the policies `before` of the cluster by `policies`, each with `namespace` and `spec`.
pub(super) fn set(cluster: &Cluster, before: &[Value], policies: &[Value]) -> Result<()> {
    for policy in before {
        cluster.api.delete(&path(policy))?;
    }
    for (number, policy) in policies.iter().enumerate() {
        put(cluster, &format!("p{number}"), policy)?;
    }
    Ok(())
}

/// Returns the time until connections to port 80 of `ip` succeed, or until they fail.
pub(super) fn effect_delay(from: &Netns, ip: IpAddr, is_made: bool) -> Result<Duration> {
    effect_delay_at(from, (ip, 80), is_made)
}

/// Returns the time until connections to a port succeed, or until they fail.
pub(super) fn effect_delay_at(
    from: &Netns,
    (ip, port): (IpAddr, u16),
    is_made: bool,
) -> Result<Duration> {
    let attempt = || connects(ip, port, Duration::from_millis(30));
    from.run(|| first_effect(is_made, attempt))
        .with_context(|| {
            let not = if is_made { "not" } else { "still" };
            format!("{ip} port {port} is {not} reached")
        })
}

/// Returns the delay of the effect: the time until the first of the consecutive connection attempts
/// that prove it.
fn first_effect(is_made: bool, mut connects: impl FnMut() -> bool) -> Result<Duration> {
    let began = Instant::now();
    let wanted = if is_made { 1 } else { FAILURES_MIN };
    let (mut row, mut first) = (0, Duration::ZERO);
    let mut left = RemainingTime::new(EFFECT_TIMEOUT);
    while row < wanted {
        ensure!(
            !left.has_expired(),
            "no effect within {} s",
            EFFECT_TIMEOUT.as_secs()
        );
        if connects() != is_made {
            row = 0;
            continue;
        }
        if row == 0 {
            first = began.elapsed();
        }
        row += 1;
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_failure_proves_no_effect() {
        let pause = Duration::from_millis(20);
        let mut made = [true, false, true, false, false, false].into_iter();
        let began = Instant::now();
        let first = first_effect(false, || {
            std::thread::sleep(pause);
            made.next().expect("three failures in a row are enough")
        });
        assert_eq!(made.next(), None);
        let first = first.unwrap();
        assert!(first >= pause * 4 && first + pause * 2 <= began.elapsed());
        first_effect(true, || true).unwrap();
    }
}
