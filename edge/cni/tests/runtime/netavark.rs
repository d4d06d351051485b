//! Calls the plugin as netavark does, with a machine and CNI's `portmap`.

use crate::machine::{HOST, Machine, answered, has_interface, path, reaches, run};
use netdev::netns::Namespace;
use serde_json::{Value, json};
use std::process::{Command, Output};
use testing::{KillOnDrop, require, wait_until};

/// A container in the network of a machine, which publishes a port.
fn container(machine: &Machine) -> Value {
    let options = json!({ "socket": machine.folder.path().join("run/grantway.sock") });
    json!({
        "container_id": "752947ff91f961eb3cb47ffe9315016979f3ffbec09e4d96a4fae3fb03391697",
        "container_name": "web",
        "port_mappings": [{ "container_port": 80, "host_ip": "", "host_port": 8080,
            "protocol": "tcp", "range": 1 }],
        "network": {
            "driver": "grantway",
            "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
            "internal": false,
            "name": "gwnet",
            "options": options,
            "subnets": [{ "gateway": HOST, "subnet": "10.99.0.0/24" }],
        },
        "network_options": {
            "interface_name": "eth0",
            "static_ips": ["10.99.0.77"],
            "static_mac": "02:00:00:00:00:77",
        },
    })
}

/// Calls the plugin as netavark does, which runs in the namespace of the host.
fn call(host: &Namespace, args: &[&str], options: &Value) -> Output {
    let call = || {
        let mut plugin = Command::new(env!("CARGO_BIN_EXE_grantway-cni"));
        let plugin = plugin
            .args(args)
            .env("CNI_PATH", testing::requirements::CNI_PLUGINS.join(":"));
        answered(plugin, options)
    };
    host.enter(call).unwrap()
}

fn done(run: &Output) -> Value {
    assert!(run.status.success(), "{run:?}");
    serde_json::from_slice(&run.stdout).unwrap_or_default()
}

#[test]
fn netavark_attaches_containers_as_guests() {
    require!(
        cni_plugin("portmap"),
        tool("iptables-save"),
        tool("busybox"),
        tool("curl")
    );
    let Some(mut machine) = Machine::up() else {
        return;
    };
    let netns = Namespace::new().unwrap();
    let options = container(&machine);
    let ends = path(&netns);
    let added = done(&call(&machine.host, &["setup", &ends], &options));
    let eth0 = &added["interfaces"]["eth0"];
    assert_eq!(eth0["mac_address"], "02:00:00:00:00:77");
    let subnet = json!({ "ipnet": "10.99.0.77/24", "gateway": HOST });
    assert_eq!(eth0["subnets"], json!([subnet]));
    assert_eq!(machine.guests().len(), 1);
    reaches(&netns, HOST);

    let www = machine.folder.path().join("www");
    std::fs::create_dir(&www).unwrap();
    std::fs::write(www.join("index.html"), "published\n").unwrap();
    let serve = || {
        let mut busybox = Command::new("busybox");
        let serve = busybox.args(["httpd", "-f", "-p", "80", "-h"]).arg(&www);
        serve.spawn().unwrap()
    };
    let server = KillOnDrop(netns.enter(serve).unwrap());
    let url = format!("http://{HOST}:8080/");
    wait_until("no page by the published port", || {
        let get = ["--silent", "--max-time", "2", &url];
        run(&machine.host, "curl", &get).stdout == b"published\n"
    });
    drop(server);

    for _ in 0..2 {
        done(&call(&machine.host, &["teardown", &ends], &options));
    }
    assert!(machine.guests().is_empty() && !has_interface(&netns, "eth0"));
    let rules = run(&machine.host, "iptables-save", &[]).stdout;
    let rules = String::from_utf8_lossy(&rules);
    assert!(!rules.contains("8080"), "{rules}");
    machine.down();
    let refused = call(&machine.host, &["setup", &ends], &options);
    let said = String::from_utf8_lossy(&refused.stdout);
    assert!(
        said.starts_with("{\"error\":\"no machine answers at "),
        "{said}"
    );
    assert!(!refused.status.success());
}
