//! Routes of a node, in a network namespace that has a fake API server, too.

use crate::api::{Api, NODES};
use netdev::netns::Namespace;
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use testing::{KillOnDrop, require, wait_until};

fn node(name: &str, addresses: &[&str], subnets: &[&str]) -> Value {
    let address = |address: &&str| json!({ "type": "InternalIP", "address": address });
    let addresses: Vec<Value> = addresses.iter().map(address).collect();
    json!({
        "metadata": { "name": name },
        "spec": { "podCIDRs": subnets },
        "status": { "addresses": addresses },
    })
}

struct Host(Namespace);

impl Host {
    /// Runs `ip`, and returns its output.
    fn ip(&self, line: &str) -> String {
        let run = || Command::new("ip").args(line.split(' ')).output().unwrap();
        let ran = self.0.enter(run).unwrap();
        assert!(ran.status.success(), "ip {line}: {ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    }

    /// Waits until the routes of the program are these.
    #[track_caller]
    fn await_routes(&self, expected: &[&str]) {
        let mut found = Vec::new();
        let is_so = || {
            found.clear();
            for family in ["-4", "-6"] {
                let shown = self.ip(&format!("{family} route show proto 71"));
                let routes = shown.lines().filter_map(|line| line.split_once(" dev "));
                found.extend(routes.map(|(route, _)| route.to_owned()));
            }
            found == expected
        };
        wait_until(&format!("the routes differ from {expected:?}"), is_so);
    }
}

#[test]
fn routes_follow_the_nodes() {
    require!(root, netns, tool("ip"));
    let host = Host(Namespace::new().unwrap());
    host.ip("link set lo up");
    host.ip("link add lan type veth peer name far");
    host.ip("address add 192.0.2.1/24 dev lan");
    host.ip("link set far up");
    let connect = || {
        host.ip("link set lan up");
        host.ip("address add fd00::1/64 dev lan nodad");
    };
    connect();
    // Another program's route to a subnet stays.
    host.ip("route add 10.244.3.0/24 via 192.0.2.9 metric 100");
    // A route of an earlier run.
    host.ip("route add 10.244.9.0/24 via 192.0.2.9 proto 71");
    let api = host.0.enter(|| Api::new(false)).unwrap();
    api.put(
        NODES,
        node("node-1", &["192.0.2.1", "fd00::1"], &["10.244.1.0/24"]),
    );
    let both = ["10.244.2.0/24", "fd00:10:2::/64"];
    api.put(NODES, node("node-2", &["192.0.2.2", "fd00::2"], &both));
    api.put(
        NODES,
        node("node-3", &["192.0.2.3"], &["10.244.3.0/24", "192.0.2.0/24"]),
    );
    let start = || {
        Command::new(env!("CARGO_BIN_EXE_grantway-kube"))
            .args(["routes", "--node", "node-1", "--server", &api.url()])
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let program = KillOnDrop(host.0.enter(start).unwrap());
    let of_node_2 = ["10.244.2.0/24 via 192.0.2.2", "fd00:10:2::/64 via fd00::2"];
    host.await_routes(&of_node_2);
    assert!(host.ip("route").contains("10.244.3.0/24 via 192.0.2.9"));

    // Another gateway, and a new node.
    api.put(NODES, node("node-2", &["192.0.2.7", "fd00::2"], &both));
    api.put(NODES, node("node-4", &["192.0.2.4"], &["10.244.4.0/24"]));
    // An address in another node's subnet does not remove a route.
    api.put(NODES, node("node-5", &["10.244.2.7", "fd00:10:2::7"], &[]));
    let moved = [
        "10.244.2.0/24 via 192.0.2.7",
        "10.244.4.0/24 via 192.0.2.4",
        of_node_2[1],
    ];
    host.await_routes(&moved);
    // The kernel removes the routes of a link that is down.
    host.ip("link set lan down");
    host.await_routes(&[]);
    connect();
    // The other program's route was removed, too.
    let [of_2, of_4, of_2_v6] = moved;
    let of_3 = "10.244.3.0/24 via 192.0.2.3";
    host.await_routes(&[of_2, of_3, of_4, of_2_v6]);
    api.remove(NODES, "node-2");
    host.await_routes(&[of_3, of_4]);
    // Routes stay after the program has exited. The next program removes those of a node that has
    // left in the meantime.
    drop(program);
    host.await_routes(&[of_3, of_4]);
    api.remove(NODES, "node-3");
    let _program = KillOnDrop(host.0.enter(start).unwrap());
    host.await_routes(&[of_4]);
}
