//! A pod, created as by a kubelet.

use crate::cri::Message;
use crate::node::{Node, grantway};
use std::fs;
use testing::wait_until;

/// The only available image.
pub(crate) const IMAGE: &str = "localhost/busybox:1";

/// Kinds of namespaces in the runtime's interface: the node's, and the container's.
const NODE: u64 = 2;
const CONTAINER: u64 = 1;
/// Mount propagation: later mounts of the host are visible in the container.
const HOST_TO_CONTAINER: u64 = 1;

/// The container's program: serves a page, receives a stream, and sends one to `peer`: at least a
/// hundred blocks of a MiB, until `stop` exists. It records checksums of the sent and the received
/// data.
const SCRIPT: &str = r#"
    sum() { sha256sum >/www/part-$1 && mv /www/part-$1 /www/$1; }
    mkfifo /tmp/never /tmp/all
    # Its input never ends: the other end would take that for the end of the stream.
    nc -l -p 7000 <>/tmp/never | sum got &
    send() {
        until [ -e /www/peer ]; do sleep 0.1; done
        sum sent </tmp/all &
        dd if=/dev/urandom of=/tmp/block bs=1M count=1 2>/dev/null
        n=0
        while [ $n -lt 100 ] || [ ! -e /www/stop ]; do
            echo "block $n"
            cat /tmp/block
            n=$((n + 1))
            sleep 0.03
        done | tee /tmp/all | nc $(cat /www/peer) 7000
    }
    send &
    exec httpd -f -p 80 -h /www
"#;

/// A running pod, with a container that serves a folder.
pub(crate) struct Pod {
    pub(crate) name: &'static str,
    pub(crate) id: String,
    container: String,
    pub(crate) ip: String,
}

impl Pod {
    /// Starts the machine as a pod of the DaemonSet: privileged, in the node's own network
    /// namespace, with a separate process namespace and these folders of the node.
    pub(crate) fn machine(node: &Node) -> Self {
        let namespaces = Message::default().number(1, NODE).number(2, CONTAINER);
        let context = Message::default().message(1, &namespaces).number(6, 1);
        let linux = Message::default()
            .text(1, node.cgroup())
            .message(2, &context);
        let metadata = Message::default().text(1, "grantway").text(2, "grantway");
        let config = Message::default()
            .message(1, &metadata.text(3, "kube-system"))
            .text(3, node.path("logs"))
            .message(8, &linux);
        let run = Message::default().message(1, &config);
        let id = node.cri("RunPodSandbox", &run).unwrap().text(1);
        let programs = grantway().parent().unwrap().display().to_string();
        let mut container = Message::default()
            .message(1, &Message::default().text(1, "machine"))
            .message(2, &Message::default().text(1, IMAGE));
        for word in ["/programs/grantway", "up", "/node/machine.toml"] {
            container = container.text(3, word);
        }
        for (own, nodes, propagation) in [
            ("/programs", programs, 0),
            ("/node", node.path(""), 0),
            ("/run/grantway", "/run/grantway".to_owned(), 0),
            ("/run/netns", "/run/netns".to_owned(), HOST_TO_CONTAINER),
        ] {
            let mount = Message::default().text(1, own).text(2, nodes);
            container = container.message(7, &mount.number(5, propagation));
        }
        let context = Message::default().number(2, 1).message(3, &namespaces);
        let linux = Message::default().message(2, &context);
        let container = container.text(11, "machine.log").message(15, &linux);
        let container = Self::started(node, (&id, &config), &container).unwrap();
        Self {
            name: "machine",
            ip: String::new(),
            id,
            container,
        }
    }

    /// Starts a container of a pod.
    fn started(node: &Node, (id, pod): (&str, &Message), of: &Message) -> Result<String, String> {
        let create = Message::default().text(1, id).message(2, of);
        let container = node
            .cri("CreateContainer", &create.message(3, pod))?
            .text(1);
        node.cri("StartContainer", &Message::default().text(1, &container))?;
        Ok(container)
    }

    fn config(node: &Node, name: &str, port: Option<u64>) -> Message {
        let metadata = Message::default().text(1, name).text(2, name);
        let linux = Message::default().text(1, node.cgroup());
        let mut config = Message::default()
            .message(1, &metadata.text(3, "default"))
            .text(3, node.path("logs"));
        if let Some(port) = port {
            config = config.message(5, &Message::default().number(2, 80).number(3, port));
        }
        config.message(8, &linux)
    }

    /// Starts a pod, or returns why this failed. Its container runs a script, and has the folder of
    /// the pod's name.
    pub(crate) fn run(node: &Node, name: &'static str, port: Option<u64>) -> Result<Self, String> {
        let config = Self::config(node, name, port);
        let run = Message::default().message(1, &config);
        let id = node.cri("RunPodSandbox", &run)?.text(1);
        let www = node.path(name);
        fs::create_dir_all(&www).unwrap();
        node.write(&format!("{name}/index.html"), &format!("this is {name}\n"));
        let command = ["/bin/busybox", "sh", "-c", SCRIPT];
        let mut container = Message::default()
            .message(1, &Message::default().text(1, name))
            .message(2, &Message::default().text(1, IMAGE));
        for word in command {
            container = container.text(3, word);
        }
        let mount = Message::default().text(1, "/www").text(2, www);
        let container = container
            .message(7, &mount)
            .message(15, &Message::default());
        let container = Self::started(node, (&id, &config), &container)?;
        let pod = Self {
            name,
            ip: Self::network(node, &id),
            id,
            container,
        };
        wait_until("the pod does not serve", || {
            pod.exec(node, &format!("wget -qO- http://{}/", pod.ip)) == pod.page()
        });
        Ok(pod)
    }

    /// Returns the address that the runtime reports for the pod while it is ready.
    pub(crate) fn network(node: &Node, id: &str) -> String {
        let asked = Message::default().text(1, id);
        let status = node.cri("PodSandboxStatus", &asked).unwrap().message(1);
        assert_eq!(status.number(3), 0, "not ready");
        status.message(5).text(1)
    }

    pub(crate) fn page(&self) -> String {
        format!("this is {}\n", self.name)
    }

    /// Returns the output of a command of busybox.
    pub(crate) fn exec(&self, node: &Node, command: &str) -> String {
        let mut asked = Message::default().text(1, &self.container);
        let limited = "/bin/busybox timeout 20 /bin/busybox ".to_owned() + command;
        for word in limited.split(' ') {
            asked = asked.text(2, word);
        }
        node.cri("ExecSync", &asked).unwrap().text(1)
    }

    pub(crate) fn reaches(&self, node: &Node, other: &Self) {
        let get = format!("wget -qO- http://{}/", other.ip);
        wait_until("no page of the other pod", || {
            self.exec(node, &get) == other.page()
        });
    }

    /// Starts the stream to another pod.
    pub(crate) fn send_to(&self, node: &Node, other: &Self) {
        let (part, whole) = (format!("{}/part", self.name), format!("{}/peer", self.name));
        node.write(&part, &other.ip);
        fs::rename(node.path(&part), node.path(&whole)).unwrap();
    }

    /// Stops the pod more than once, as a kubelet does.
    pub(crate) fn end(&self, node: &Node) {
        let asked = Message::default().text(1, &self.id);
        for method in ["StopPodSandbox", "StopPodSandbox", "RemovePodSandbox"] {
            node.cri(method, &asked).unwrap();
        }
    }
}
