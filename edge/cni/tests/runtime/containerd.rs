//! Pods of a real runtime: containerd, called as a kubelet does.

use crate::cri::{Fields, Message};
use crate::manifest::{contrib, file};
use crate::node::{Node, grantway};
use crate::pod::{IMAGE, Pod};
use std::thread::sleep;
use std::time::{Duration, Instant};
use testing::{require, wait_until};

/// The node's address.
const GATEWAY: &str = "10.99.0.1";
/// Kills of the driver domain while streams run.
const KILLS: usize = 10;
/// Deadline of a stream of 100 MB on a slow machine.
const STREAM: Duration = Duration::from_secs(180);

/// Returns a node with a runtime, or `None` if this machine cannot run one.
fn node() -> Option<Node> {
    require!(
        machine,
        program("grantway"),
        cni_plugin("host-local"),
        cni_plugin("portmap"),
        tool("containerd"),
        tool("ctr"),
        tool("runc"),
        tool("busybox"),
        tool("curl"),
        tool("iptables-save"),
        tool("nsenter"),
        tool("unshare")
    );
    let mut node = Node::new();
    installed(&node);
    node.start_containerd();
    let image = node.path("image.tar");
    for space in ["k8s.io", "default"] {
        let args = ["images", "import", "--snapshotter", "native", &image];
        node.ctr(&[&["--namespace", space], &args[..]].concat());
    }
    Some(node)
}

#[test]
fn pods_of_containerd_are_guests() {
    let Some(mut node) = node() else {
        return;
    };
    node.start_machine();
    let status = node.cri("Status", &Message::default()).unwrap().message(1);
    let mut conditions = status.messages(1);
    let is_ready = |of: Fields| of.text(1) == "NetworkReady" && of.number(2) == 1;
    assert!(conditions.any(is_ready), "a network configuration exists");
    let [a, b] = talk(&node);
    stream(&mut node, &a, &b);
    pods_are_removed_and_added(&node, &a, b);
    refused(&mut node, &a);
}

/// The machine itself is a pod, as in the DaemonSet.
#[test]
fn a_machine_in_a_pod_serves_the_others() {
    let Some(node) = node() else {
        return;
    };
    let machine = Pod::machine(&node);
    node.await_machine();
    let [a, b] = talk(&node);
    node.output_of(grantway(), &["restart", "driver"]);
    a.reaches(&node, &b);
    // After an update of the DaemonSet, pods are attached again with their addresses, without being
    // recreated.
    machine.end(&node);
    let machine = Pod::machine(&node);
    node.await_machine();
    a.reaches(&node, &b);
    b.reaches(&node, &a);
    assert_eq!((node.guests(), node.leases()), (2, 2));
    for pod in [a, b] {
        pod.end(&node);
    }
    assert_eq!((node.guests(), node.leases()), (0, 0));
    machine.end(&node);
}

/// Does what an administrator and then the cluster do before the first pod.
fn installed(node: &Node) {
    let script = contrib("node.sh");
    let fast = "[driver]\nrestart_pause_ms = 20\n";
    let config = file("grantway.conf").replace("[driver]\n", fast);
    assert!(config.contains(fast));
    node.write("node/grantway.conf", &config);
    let conflist = "10-grantway.conflist";
    node.write(&format!("node/{conflist}"), &file(conflist));
    let plugin = env!("CARGO_BIN_EXE_grantway-cni");
    std::fs::copy(plugin, node.path("plugins/grantway-cni")).unwrap();
    let machine = node.output_of(&script, &["render"]);
    node.write("machine.toml", &machine);
    node.output_of(&script, &["install"]);
}

fn talk(node: &Node) -> [Pod; 2] {
    let a = Pod::run(node, "a", Some(8080)).unwrap();
    let b = Pod::run(node, "b", None).unwrap();
    assert_eq!((node.guests(), node.leases()), (2, 2));
    let link = a.exec(node, "ip address show dev eth0");
    assert!(link.contains(&format!("{}/32", a.ip)), "{link}");
    let routes = a.exec(node, "ip route");
    assert!(
        routes.contains(&format!("default via {GATEWAY}")),
        "{routes}"
    );
    a.reaches(node, &b);
    b.reaches(node, &a);
    // The node reaches the pod by its address and by its published port.
    for to in [a.ip.clone(), format!("{GATEWAY}:8080")] {
        let url = format!("http://{to}/");
        wait_until("no page of a pod on the node", || {
            let run = node.run("curl", &["--silent", "--max-time", "2", &url]);
            run.stdout == a.page().as_bytes()
        });
    }
    [a, b]
}

/// Streams in both directions survive kills of ten driver domains, and of the runtime.
fn stream(node: &mut Node, a: &Pod, b: &Pod) {
    a.send_to(node, b);
    b.send_to(node, a);
    for _ in 0..KILLS / 2 {
        node.kill_driver();
    }
    node.kill_containerd();
    node.start_containerd();
    for _ in 0..KILLS / 2 {
        node.kill_driver();
    }
    for [from, to] in [[a, b], [b, a]] {
        let file = |pod: &Pod, name: &str| node.read(&format!("{}/{name}", pod.name));
        assert_eq!(
            file(from, "sent"),
            "",
            "it ended while driver domains were killed"
        );
        node.write(&format!("{}/stop", from.name), "");
        let end = Instant::now() + STREAM;
        while file(from, "sent").is_empty() || file(to, "got").is_empty() {
            assert!(Instant::now() < end, "a stream does not finish");
            sleep(Duration::from_millis(50));
        }
        assert_eq!(file(from, "sent"), file(to, "got"));
    }
    // The runtime made no call, and nothing has changed.
    assert_eq!((node.guests(), node.leases()), (2, 2));
    for pod in [a, b] {
        assert_eq!(Pod::network(node, &pod.id), pod.ip);
    }
}

fn pods_are_removed_and_added(node: &Node, a: &Pod, b: Pod) {
    b.end(node);
    assert_eq!((node.guests(), node.leases()), (1, 1));
    let b = Pod::run(node, "b", None).unwrap();
    a.reaches(node, &b);
    // The runtime's client calls the plugin directly.
    let group = format!("{}/alone", node.cgroup());
    let run = [
        "run",
        "--rm",
        "--cni",
        "--snapshotter",
        "native",
        "--cgroup",
        &group,
    ];
    let shown = ["ip", "-4", "address", "show", "dev", "eth0"];
    let said = node.ctr(&[&run[..], &[IMAGE, "alone", "/bin/busybox"], &shown].concat());
    assert!(said.contains("inet 10.99.0."), "{said}");
    b.end(node);
    assert_eq!((node.guests(), node.leases()), (1, 1));
}

/// Without a machine, new pods fail with the reason, and existing pods can be removed.
fn refused(node: &mut Node, a: &Pod) {
    node.output_of(grantway(), &["down"]);
    let said = Pod::run(node, "c", None).map(|_| ()).unwrap_err();
    // The documentation quotes the event that a user sees.
    let why = "no machine answers at /run/grantway/grantway.sock: start one with `grantway up`, \
               then try again";
    assert!(said.contains(why), "{said}");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kubernetes.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(why), "docs/kubernetes.md");
    a.end(node);
    assert_eq!(node.leases(), 0);
    assert!(!node.undone().is_empty());
    // Calls for the next machine perform the pending cleanups, after which nothing remains.
    node.start_machine();
    let d = Pod::run(node, "d", None).unwrap();
    assert!(node.undone().is_empty());
    d.end(node);
    assert_eq!((node.guests(), node.leases()), (0, 0));
    let rules = node.output_of("iptables-save", &[]);
    assert!(!rules.contains("8080"), "{rules}");
}
