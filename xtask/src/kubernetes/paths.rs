//! Files and addresses of a cluster.

use super::programs::Components;
use crate::workspace;
use anyhow::{Context, Result};
use serde_json::json;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The IPv4 address of the control plane.
pub(super) const PLANE: &str = "172.31.250.1";
/// The IPv6 address of the control plane.
pub(super) const PLANE_V6: &str = "fd00:172:31::1";
/// The subnets of pods.
pub(super) const PODS: &str = "10.244.0.0/16,fd00:10:244::/56";
/// The subnets of Services.
pub(super) const SERVICES: &str = "10.96.0.0/16,fd00:10:96::/112";
/// The paths of a cluster's files.
#[derive(Clone)]
pub(super) struct Paths {
    /// The folder that contains all files of the cluster.
    pub(super) run: PathBuf,
    pub(super) kubernetes: PathBuf,
    pub(super) scripts: PathBuf,
    pub(super) images: [PathBuf; 2],
}

impl Paths {
    pub(super) fn new(home: &Path, programs: &Components, images: [PathBuf; 2]) -> Result<Self> {
        let run = home.join("run");
        if run.exists() {
            fs::remove_dir_all(&run).with_context(|| format!("cannot empty {}", run.display()))?;
        }
        fs::create_dir_all(run.join("log"))?;
        Ok(Self {
            run,
            kubernetes: programs.kubernetes.clone(),
            scripts: workspace::root().join("xtask/kubernetes"),
            images,
        })
    }

    /// Returns the folder for the data of a part of the cluster. Only the cluster sees it.
    pub(super) fn disk(&self, name: &str) -> PathBuf {
        self.run.join("disk").join(name)
    }

    /// Returns the kubeconfig of a user.
    pub(super) fn kubeconfig(&self, user: &str) -> PathBuf {
        self.run.join(format!("{user}.conf"))
    }

    /// Opens the log of a daemon.
    pub(super) fn log(&self, name: &str) -> Result<File> {
        let path = self.run.join("log").join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(&path);
        log.with_context(|| path.display().to_string())
    }

    /// Writes the list of the API server's users, and a kubeconfig for each. The token of a user is
    /// the user's name.
    pub(super) fn write_users(&self, nodes: &[&str]) -> Result<()> {
        let mut users = vec![
            ("admin".to_owned(), "admin".to_owned(), "system:masters"),
            (
                "controllers".into(),
                "system:kube-controller-manager".into(),
                "",
            ),
            ("scheduler".into(), "system:kube-scheduler".into(), ""),
            ("proxy".into(), "system:kube-proxy".into(), ""),
        ];
        for node in nodes {
            users.push((
                (*node).to_owned(),
                format!("system:node:{node}"),
                "system:nodes",
            ));
        }
        let mut tokens = String::new();
        for (user, name, group) in users {
            tokens += &format!("{user},{name},{user},\"{group}\"\n");
            let authority = self.run.join("tls/apiserver.crt");
            let cluster = json!({
                "server": format!("https://{PLANE}:6443"), "certificate-authority": authority,
            });
            let config = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{ "name": "c", "cluster": cluster }],
                "users": [{ "name": "c", "user": { "token": user } }],
                "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
            });
            fs::write(self.kubeconfig(&user), config.to_string())?;
        }
        fs::write(self.run.join("tokens.csv"), tokens)?;
        Ok(())
    }
}
