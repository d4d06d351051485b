//! A cluster under test, and the results of its checks.

use crate::kubernetes::cluster::Cluster;
use crate::kubernetes::waiting::{READY_TIMEOUT, wait};
use anyhow::Result;
use serde_json::json;
use std::time::Instant;

/// A cluster under test, and the results of its checks.
pub(in crate::kubernetes) struct Results {
    pub(super) cluster: Cluster,
    pub(super) passed: usize,
    pub(super) failed: usize,
}

impl Results {
    /// Runs a check and prints its result. The text that the check returns holds measured values.
    pub(super) fn check(&mut self, name: &str, check: impl FnOnce(&mut Cluster) -> Result<String>) {
        let began = Instant::now();
        let done = check(&mut self.cluster);
        let took = began.elapsed().as_secs_f64();
        match done {
            Ok(text) => {
                self.passed += 1;
                println!("ok   {name:48}{took:6.1} s  {text}");
            }
            Err(error) => {
                self.failed += 1;
                println!("FAIL {name:48}{took:6.1} s  {error:#}");
            }
        }
    }
}

/// Creates a namespace with the label `team`.
pub(super) fn namespace(cluster: &Cluster, name: &str) -> Result<()> {
    let labels = json!({ "team": name });
    let metadata = json!({ "name": name, "labels": labels });
    cluster.put(
        "namespaces",
        &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }),
    )?;
    let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
    wait("the account of pods does not exist", READY_TIMEOUT, || {
        Ok(cluster.api.get(&account).is_ok())
    })
}
