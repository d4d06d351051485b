//! A cluster: its control plane and its nodes.

use super::api::Api;
use super::node::Node;
use super::paths::{PLANE, PODS, Paths, SERVICES};
use super::space::Space;
use super::waiting::wait;
use crate::workspace;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Deadline for starting the control plane and each node.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A running cluster. It stops when this value is dropped or this program exits.
pub(super) struct Cluster {
    /// The nodes. They are dropped before the namespaces that contain them.
    pub(super) nodes: Vec<Node>,
    pub(super) plane: Space,
    pub(super) api: Api,
    pub(super) paths: Paths,
}

impl Cluster {
    /// Starts a cluster with these nodes.
    pub(super) fn start(paths: Paths, names: &[&str]) -> Result<Self> {
        paths.write_users(names)?;
        let run = paths.run.to_string_lossy();
        let plane = Space::new(
            None,
            &paths.scripts.join("cluster.sh"),
            &[&*run],
            paths.log("cluster")?,
        )?;
        let api = Api::new(paths.run.join("api.sock"));
        let mut cluster = Self {
            nodes: Vec::new(),
            plane,
            api,
            paths,
        };
        cluster.start_plane()?;
        for (number, name) in names.iter().enumerate() {
            let node = Node::new(name, number + 11);
            cluster.nodes.push(node);
        }
        let (paths, plane) = (&cluster.paths, &cluster.plane);
        // The control plane and the nodes start in parallel, because they mostly wait for their
        // disks.
        std::thread::scope(|scope| {
            let nodes = cluster.nodes.iter_mut();
            let boots: Vec<_> = nodes
                .map(|node| scope.spawn(|| node.boot(paths, plane)))
                .collect();
            let mut ended = boots.into_iter().map(std::thread::ScopedJoinHandle::join);
            ended.try_for_each(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
        Ok(cluster)
    }

    fn component(&mut self, name: &str, args: &[String]) -> Result<()> {
        let mut command = self.plane.command(&self.paths.kubernetes);
        command.arg(name).args(args);
        self.plane.daemon(command, self.paths.log(name)?)
    }

    fn start_plane(&mut self) -> Result<()> {
        let run = self.paths.run.clone();
        let file = |name: &str| run.join(name).display().to_string();
        let words = |text: String| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let data = self.paths.disk("etcd");
        let etcd = format!(
            "--data-dir {} --unsafe-no-fsync --log-level warn",
            data.display()
        );
        self.component("etcd", &words(etcd))?;
        // The API server creates its certificate and key. The key also signs the tokens of
        // accounts.
        let key = file("tls/apiserver.key");
        let server = format!(
            "--etcd-servers http://127.0.0.1:2379 --bind-address {PLANE} --secure-port 6443 \
             --advertise-address {PLANE} --cert-dir {} --token-auth-file {} \
             --authorization-mode Node,RBAC --allow-privileged \
             --service-cluster-ip-range {SERVICES} --profiling=false \
             --service-account-issuer https://kubernetes.default.svc \
             --service-account-key-file {key} --service-account-signing-key-file {key} \
             --kubelet-preferred-address-types InternalIP",
            file("tls"),
            file("tokens.csv"),
        );
        self.component("kube-apiserver", &words(server))?;
        wait("the API server is not ready", START_TIMEOUT, || {
            let ready = self.kubectl(&["get", "--raw", "/readyz"]).output()?;
            Ok(ready.status.success())
        })?;
        let config = |user: &str| self.paths.kubeconfig(user).display().to_string();
        let (controllers, scheduler) = (config("controllers"), config("scheduler"));
        let controllers = format!(
            "--kubeconfig {controllers} --leader-elect=false --allocate-node-cidrs \
             --cluster-cidr {PODS} --service-cluster-ip-range {SERVICES} \
             --root-ca-file {} --service-account-private-key-file {key} \
             --use-service-account-credentials",
            file("tls/apiserver.crt"),
        );
        self.component("kube-controller-manager", &words(controllers))?;
        let scheduler = format!("--kubeconfig {scheduler} --leader-elect=false");
        self.component("kube-scheduler", &words(scheduler))?;
        let mut proxy = self.kubectl(&["proxy", "--unix-socket"]);
        proxy.arg(run.join("api.sock"));
        self.plane.daemon(proxy, self.paths.log("kubectl-proxy")?)?;
        wait("kubectl proxy does not answer", START_TIMEOUT, || {
            Ok(self.api.get("/version").is_ok())
        })
    }

    /// Returns a kubectl command.
    pub(super) fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = self.plane.command(&self.paths.kubernetes);
        command.arg("kubectl").args(args);
        command.env("KUBECONFIG", self.paths.kubeconfig("admin"));
        command
    }

    /// Runs kubectl and returns its output.
    pub(super) fn kubectl_output(&self, args: &[&str]) -> Result<String> {
        workspace::output(&mut self.kubectl(args))
    }

    /// Applies the objects of a manifest.
    pub(super) fn apply(&self, manifest: &str) -> Result<()> {
        let mut apply = self.kubectl(&["apply", "-f", "-"]);
        apply.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = apply.spawn().context("cannot run kubectl")?;
        let mut stdin = child.stdin.take().context("no input")?;
        stdin.write_all(manifest.as_bytes())?;
        drop(stdin);
        ensure!(child.wait()?.success(), "kubectl apply failed");
        Ok(())
    }

    /// Returns the items of a list.
    pub(super) fn list(&self, path: &str) -> Result<Vec<Value>> {
        let list = self.api.get(path)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }
}
