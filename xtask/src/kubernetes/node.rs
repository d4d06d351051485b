//! A node of a cluster: a runtime, a kubelet and kube-proxy in namespaces.

use super::paths::{PLANE, PLANE_V6, PODS, Paths};
use super::space::{Netns, Space};
use super::waiting::wait;
use crate::workspace;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Deadline for starting the runtime.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The runtime's socket inside the node's namespaces.
const RUNTIME: &str = "/run/containerd/containerd.sock";

pub(super) struct Node {
    pub(super) name: String,
    /// The node's addresses.
    pub(super) v4: String,
    pub(super) v6: String,
    /// The MAC address. A reboot keeps it, because other machines have it in their neighbour
    /// tables.
    mac: String,
    /// The node's namespaces; `None` while the node is off.
    space: Option<Space>,
    /// Whether the images are imported. A reboot keeps them.
    has_images: bool,
}

impl Node {
    pub(super) fn new(name: &str, number: usize) -> Self {
        Self {
            name: name.to_owned(),
            v4: format!("172.31.250.{number}"),
            v6: format!("fd00:172:31::{number}"),
            mac: format!("02:00:00:00:00:{number:02x}"),
            space: None,
            has_images: false,
        }
    }

    pub(super) fn space(&self) -> Result<&Space> {
        self.space
            .as_ref()
            .with_context(|| format!("the node {} is off", self.name))
    }

    fn space_mut(&mut self) -> Result<&mut Space> {
        let off = format!("the node {} is off", self.name);
        self.space.as_mut().context(off)
    }

    pub(super) fn netns(&self) -> Result<Netns> {
        self.space()?.netns()
    }

    /// Returns the node's addresses, IPv4 first.
    pub(super) fn ips(&self) -> Result<[IpAddr; 2]> {
        Ok([self.v4.parse()?, self.v6.parse()?])
    }

    /// Boots the node: links it to the control plane and starts its daemons.
    pub(super) fn boot(&mut self, paths: &Paths, plane: &Space) -> Result<()> {
        let disk = paths.disk(&self.name);
        let script = paths.scripts.join("node.sh");
        let space = Space::new(
            Some(plane),
            &script,
            &[&*disk.to_string_lossy(), &self.name],
            paths.log(&self.name)?,
        )?;
        // Enters only the network namespace, because the process id refers to this system's PID
        // namespace.
        let mut link = Command::new("nsenter");
        link.args([
            "--target",
            &plane.pid().to_string(),
            "--net",
            "ip",
            "link",
            "add",
        ])
        .args([
            &format!("to-{}", self.name),
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "address",
            &self.mac,
        ])
        .args(["netns", &space.pid().to_string()]);
        // After a power-off, the kernel removes the old link only when it removes the namespace.
        let what = format!("node {} is not linked to the control plane", self.name);
        wait(&what, START_TIMEOUT, || {
            workspace::output(&mut link).map(|_| true)
        })?;
        let far = format!("link set to-{} master lan up", self.name);
        workspace::output(plane.command("ip").args(far.split(' ')))?;
        for line in [
            format!("address add {}/24 dev eth0", self.v4),
            format!("address add {}/64 dev eth0 nodad", self.v6),
            "link set eth0 up".to_owned(),
            // The node's requests to Services need a route before their addresses are translated.
            format!("route add default via {PLANE}"),
            format!("-6 route add default via {PLANE_V6}"),
        ] {
            workspace::output(space.command("ip").args(line.split(' ')))?;
        }
        self.space = Some(space);
        self.start_runtime(paths)?;
        self.start_kubelet(paths)?;
        self.start_proxy(paths, false)
    }

    pub(super) fn start_runtime(&mut self, paths: &Paths) -> Result<()> {
        let log = paths.log(&format!("{}-containerd", self.name))?;
        let config = paths.disk(&self.name).join("containerd.toml");
        let space = self.space_mut()?;
        let mut runtime = space.command("containerd");
        runtime.arg("--config").arg(config);
        space.daemon(runtime, log)?;
        let ctr = |args: &[&str]| -> Result<Command> {
            let mut ctr = self.space()?.command("ctr");
            ctr.args(["--address", RUNTIME, "--namespace", "k8s.io"])
                .args(args);
            Ok(ctr)
        };
        wait("containerd does not answer", START_TIMEOUT, || {
            Ok(ctr(&["version"])?.output()?.status.success())
        })?;
        if !self.has_images {
            for image in &paths.images {
                workspace::output(&mut ctr(&["images", "import", &image.to_string_lossy()])?)?;
            }
            self.has_images = true;
        }
        Ok(())
    }

    pub(super) fn start_kubelet(&mut self, paths: &Paths) -> Result<()> {
        let config = paths.disk(&self.name).join("kubelet.yaml");
        let args = format!(
            "kubelet --config {} --kubeconfig {} --hostname-override {} --node-ip {},{}",
            config.display(),
            paths.kubeconfig(&self.name).display(),
            self.name,
            self.v4,
            self.v6,
        );
        self.component(paths, "kubelet", &args)
    }

    /// Starts kube-proxy, which handles Services.
    pub(super) fn start_proxy(&mut self, paths: &Paths, masquerade_all: bool) -> Result<()> {
        let args = format!(
            "kube-proxy --kubeconfig {} --hostname-override {} --proxy-mode iptables \
             --cluster-cidr {PODS} --masquerade-all={masquerade_all} --conntrack-max-per-core 0 \
             --conntrack-min 0 --conntrack-tcp-timeout-established 0s \
             --conntrack-tcp-timeout-close-wait 0s",
            paths.kubeconfig("proxy").display(),
            self.name,
        );
        self.component(paths, "kube-proxy", &args)
    }

    fn component(&mut self, paths: &Paths, name: &str, args: &str) -> Result<()> {
        let log = paths.log(&format!("{}-{name}", self.name))?;
        let space = self.space_mut()?;
        let mut command = space.command(&paths.kubernetes);
        command.args(args.split_whitespace());
        space.daemon(command, log)
    }

    /// Kills everything on the node and removes its control groups. Otherwise the next kubelet
    /// would wait for the group of each killed container.
    pub(super) fn power_off(&mut self, paths: &Paths, plane: &Space) -> Result<()> {
        self.space_mut()?.power_off()?;
        self.space = None;
        let disk = paths.disk(&self.name).join("containerd");
        let disk = plane.path(&disk.to_string_lossy());
        let mut containers = BTreeSet::new();
        for kind in ["sandboxes", "containers"] {
            containers.extend(names(&disk.join("io.containerd.grpc.v1.cri").join(kind))?);
        }
        ensure!(!containers.is_empty(), "no containers on {}", self.name);
        let what = format!("the control groups of {} are busy", self.name);
        wait(&what, START_TIMEOUT, || {
            // Control groups have a folder for each hierarchy in version 1, and a single hierarchy
            // in version 2.
            let root = Path::new("/sys/fs/cgroup");
            let hierarchies = names(root)?.into_iter().map(|name| root.join(name));
            for hierarchy in hierarchies.chain([root.to_owned()]) {
                let groups = hierarchy.join("k8s.io");
                for name in names(&groups)?.intersection(&containers) {
                    fs::remove_dir(groups.join(name))?;
                }
            }
            Ok(true)
        })
    }
}

/// Returns the names in a folder, which need not exist.
pub(super) fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(BTreeSet::new());
        }
        entries => entries.with_context(|| folder.display().to_string())?,
    };
    let name = |entry: std::io::Result<fs::DirEntry>| {
        Ok(entry?.file_name().to_string_lossy().into_owned())
    };
    entries.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_folder_is_empty() {
        let root = crate::workspace::root();
        assert!(names(&root.join("nonexistent")).unwrap().is_empty());
        assert!(
            names(&root.join("Cargo.toml/nonexistent"))
                .unwrap()
                .is_empty()
        );
        let found = names(&root.join("xtask/kubernetes")).unwrap();
        assert!(found.contains("cluster.sh"), "{found:?}");
    }
}
