//! Containers are attached, communicate and are detached.

use crate::machine::{HOST, Machine, call, has_interface, names, path, reaches, run};
use netdev::netns::Namespace;
use serde_json::{Value, json};
use std::fs;
use testing::{FORGER, forged_frame_drops, require, wait_until};

/// A container: its id, and its namespace.
struct Container(&'static str, Namespace);

impl Container {
    fn new(id: &'static str) -> Self {
        Self(id, Namespace::new().unwrap())
    }

    fn call(&self, command: &str, conf: &Value) -> crate::machine::Answer {
        call(command, self.0, &path(&self.1), conf)
    }
}

/// Returns the configuration that a runtime sends after ADD.
fn after(conf: &Value, result: &Value) -> Value {
    let mut conf = conf.clone();
    conf["prevResult"] = result.clone();
    conf
}

/// Returns the container's address of family number `n`, without its prefix length.
fn address(result: &Value, n: usize) -> &str {
    let address = result["ips"][n]["address"].as_str().unwrap();
    address.split('/').next().unwrap()
}

/// Waits until the interface disappears, shortly after its guest.
fn loses_its_interface(namespace: &Namespace) {
    wait_until("the interface still exists", || {
        !has_interface(namespace, "eth0")
    });
}

#[test]
fn containers_communicate_and_leave_nothing() {
    let Some(mut machine) = Machine::up() else {
        return;
    };
    let conf = machine.network();
    let [a, b] = ["0a", "0b"].map(Container::new);
    call("STATUS", "", "", &conf).done();
    let [came_a, came_b] = [&a, &b].map(|container| container.call("ADD", &conf).done());
    assert_eq!(machine.guests().len(), 2);
    assert_eq!(came_a["interfaces"][0]["sandbox"], path(&a.1));
    assert_eq!(machine.leases().len(), 4);

    // They reach each other and the host, in both address families, and a network behind the host
    // by the default route.
    let lo = ["address", "add", "192.0.2.7/32", "dev", "lo"];
    assert!(run(&machine.host, "ip", &lo).status.success());
    for family in [0, 1] {
        reaches(&a.1, address(&came_b, family));
        reaches(&b.1, address(&came_a, family));
    }
    for to in [HOST, "fd99::1", "192.0.2.7"] {
        reaches(&a.1, to);
    }
    let link = run(&a.1, "ip", &["link", "show", "eth0"]).stdout;
    let mac = came_a["interfaces"][0]["mac"].as_str().unwrap();
    assert!(String::from_utf8_lossy(&link).contains(mac), "{mac}");

    // CHECK succeeds only for unchanged attachments.
    a.call("CHECK", &after(&conf, &came_a)).done();
    let add = a.call("ADD", &conf);
    assert_eq!(add.failed(), 102);
    a.call("CHECK", &after(&conf, &came_a)).done();
    assert!(
        run(&b.1, "ip", &["-6", "route", "del", "default"])
            .status
            .success()
    );
    assert_eq!(b.call("CHECK", &after(&conf, &came_b)).failed(), 101);

    // Call DEL twice, the second time in the form used by runtimes without state.
    a.call("DEL", &after(&conf, &came_a)).done();
    call("DEL", a.0, "", &conf).done();
    assert!(!has_interface(&a.1, "eth0"));
    assert_eq!((machine.guests().len(), machine.leases().len()), (1, 2));
    call("GC", "", "", &conf).done();
    assert_eq!(machine.guests().len(), 1);
    // GC keeps the attachment that the runtime lists, and removes the other.
    a.call("ADD", &conf).done();
    let mut gc = conf.clone();
    gc["cni.dev/valid-attachments"] = json!([{ "containerID": b.0, "ifname": "eth0" }]);
    call("GC", "", "", &gc).done();
    assert_eq!(machine.guests().len(), 1);
    loses_its_interface(&a.1);
    reaches(&b.1, HOST);
    // `host-local` has only the addresses of the other container.
    assert_eq!(machine.leases().len(), 2, "{:?}", machine.leases());
    a.call("DEL", &conf).done();
    gc["cni.dev/valid-attachments"] = json!([]);
    call("GC", "", "", &gc).done();
    assert!(machine.guests().is_empty());
    loses_its_interface(&b.1);
    assert!(machine.leases().is_empty(), "{:?}", machine.leases());
    b.call("DEL", &conf).done();

    // Both can be attached again. Then the machine stops while they are attached.
    for container in [&a, &b] {
        container.call("ADD", &conf).done();
    }
    machine.down();
    assert_eq!(call("STATUS", "", "", &conf).failed(), 50);
    let c = Container::new("0c");
    assert_eq!(c.call("ADD", &conf).failed(), 11);
    for container in [&a, &b, &c] {
        container.call("DEL", &conf).done();
        assert!(!has_interface(&container.1, "eth0"));
    }
    assert!(machine.leases().is_empty(), "{:?}", machine.leases());
}

/// Containers are guarded like guests of the file.
#[test]
fn containers_are_guarded() {
    require!(tool("python3"));
    let Some(mut machine) = Machine::up() else {
        return;
    };
    let conf = machine.network();
    let a = Container::new("0a");
    let added = a.call("ADD", &conf).done();
    let args = ["-c", FORGER, "eth0", address(&added, 0), HOST];
    let sent = run(&a.1, "python3", &args);
    assert!(sent.status.success(), "{sent:?}");
    wait_until("not every forged frame is dropped", || {
        let drops = machine.stat("driver")["drops"].clone();
        println!("{drops}");
        forged_frame_drops().all(|(reason, count)| drops[reason].as_u64() >= Some(count))
    });
    reaches(&a.1, HOST);
    a.call("DEL", &conf).done();
    machine.down();
}

/// Without forwarding by the host, such containers reach the host only. With forwarding, ICMP
/// redirects do not make them bypass the host.
#[test]
fn routed_containers_reach_each_other_by_the_host() {
    let Some(machine) = Machine::up() else {
        return;
    };
    let mut conf = machine.network();
    conf["routed"] = true.into();
    let [a, b] = ["1a", "1b"].map(Container::new);
    let [added_a, added_b] = [&a, &b].map(|container| container.call("ADD", &conf).done());
    assert!(
        added_a["ips"][0]["address"]
            .as_str()
            .unwrap()
            .ends_with("/32")
    );
    a.call("CHECK", &after(&conf, &added_a)).done();
    for to in [HOST, "fd99::1"] {
        reaches(&a.1, to);
    }
    let forwards = |value: &str| {
        let write = || {
            for file in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                fs::write(format!("/proc/sys/net/{file}"), value).unwrap();
            }
        };
        machine.host.enter(write).unwrap();
    };
    for family in [0, 1] {
        let to = address(&added_b, family);
        forwards("0");
        let ping = run(&a.1, "ping", &["-c", "1", "-W", "1", to]);
        assert!(!ping.status.success(), "{ping:?}");
        forwards("1");
        reaches(&a.1, to);
        run(&a.1, "ping", &["-c", "5", "-i", "0.2", to]);
        let route = run(&a.1, "ip", &["route", "get", to]).stdout;
        let route = String::from_utf8(route).unwrap();
        let gateway = ["10.99.0.1", "fd99::1"][family];
        assert!(route.contains(&format!("via {gateway}")), "{route}");
    }
    for container in [&a, &b] {
        container.call("DEL", &conf).done();
    }
    assert!(machine.leases().is_empty(), "{:?}", machine.leases());
}

/// A hanging machine answers no client. Pending DELs are executed when the machine answers again.
#[test]
fn deletions_without_an_answer_are_retried() {
    let Some(mut machine) = Machine::up() else {
        return;
    };
    let conf = machine.network();
    let [a, b] = ["0a", "0b"].map(Container::new);
    a.call("ADD", &conf).done();
    let mut away = conf.clone();
    let folder = machine.folder.path();
    let (socket, hidden) = (folder.join("run/grantway.sock"), folder.join("run/hidden"));
    std::fs::rename(&socket, &hidden).unwrap();
    away["prevResult"] = Value::Null;
    a.call("DEL", &away).done();
    assert!(machine.leases().is_empty());
    assert_eq!(names(&folder.join("state")).len(), 1);
    std::fs::rename(&hidden, &socket).unwrap();
    assert_eq!(machine.guests().len(), 1);
    // Its address is assigned again, because no container has it any longer.
    let added = b.call("ADD", &conf).done();
    loses_its_interface(&a.1);
    assert_eq!(machine.guests().len(), 1);
    reaches(&b.1, HOST);
    reaches(&machine.host, address(&added, 0));
    assert!(names(&machine.folder.path().join("state")).is_empty());
    b.call("DEL", &conf).done();
    machine.down();
}

#[test]
fn machine_errors_are_reported_and_take_no_address() {
    let Some(mut machine) = Machine::up() else {
        return;
    };
    let conf = machine.network();
    let a = Container::new("0a");
    let nowhere = call("ADD", "0a", "/run/netns/no-such-namespace", &conf);
    assert_eq!(nowhere.failed(), 100);
    let mut wrong = conf.clone();
    wrong["vif"] = json!({ "rate": 7 });
    let refused = a.call("ADD", &wrong);
    let details = refused.said["details"].to_string();
    assert!(details.contains("unknown key `rate`"), "{details}");
    assert_eq!(refused.failed(), 100);
    let mut taken = conf.clone();
    taken["ipam"] = json!({});
    taken["runtimeConfig"] = json!({ "ips": [format!("{HOST}/24")] });
    assert_eq!(a.call("ADD", &taken).failed(), 100);
    assert!(machine.leases().is_empty() && machine.guests().is_empty());
    // The conflicting interface disappears with its namespace.
    a.call("ADD", &conf).done();
    drop(a.1);
    wait_until("it is still there", || machine.guests().is_empty());
    call("DEL", "0a", "", &conf).done();
    assert!(machine.leases().is_empty());
    machine.down();
}
