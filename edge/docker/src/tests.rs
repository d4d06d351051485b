//! Tests of the protocol with a server but no machine: wrong requests, junk, incomplete messages,
//! silent clients, full disks.

use crate::http::HEAD_MAX;
use crate::{Folders, RemoteDriver, serve};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use tempfile::TempDir;

struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Starts a server with the records of earlier ones.
    fn serve(&self) {
        let _earlier = fs::remove_file(self.path("sock"));
        let listener = UnixListener::bind(self.path("sock")).unwrap();
        let folders = Folders {
            state: self.path("state"),
            run: self.path("run"),
        };
        let driver = Arc::new(RemoteDriver::open(&folders).unwrap());
        thread::spawn(move || serve(&listener, &driver));
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path("sock")).unwrap()
    }

    /// Returns the whole answer to these bytes.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        let _rejected_early = stream.write_all(bytes);
        let mut text = String::new();
        let _reset = stream.read_to_string(&mut text);
        text
    }

    fn call(&self, name: &str, argument: &Value) -> Value {
        let body = argument.to_string();
        let length = body.len();
        let head = format!("POST /{name} HTTP/1.1\r\nHost: \r\nContent-Length: {length}\r\n\r\n");
        let answer = self.raw(&[head.as_bytes(), body.as_bytes()].concat());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        serde_json::from_str(body).unwrap()
    }

    #[track_caller]
    fn fails(&self, name: &str, argument: &Value, why: &str) {
        let answer = self.call(&format!("NetworkDriver.{name}"), argument);
        let error = answer["Err"].as_str().unwrap();
        assert!(error.contains(why), "{error}");
    }

    #[track_caller]
    fn done(&self, name: &str, argument: &Value) -> Value {
        let answer = self.call(&format!("NetworkDriver.{name}"), argument);
        assert_eq!(answer["Err"], Value::Null);
        answer
    }
}

fn id(digit: &str) -> String {
    digit.repeat(64)
}

fn network(bench: &Bench) -> Value {
    json!({
        "NetworkID": id("a"),
        "Options": {
            "com.docker.network.enable_ipv6": false,
            "com.docker.network.generic": { "socket": bench.path("no.sock") },
        },
        "IPv4Data": [{ "AddressSpace": "LocalDefault", "Pool": "10.88.7.0/24",
            "Gateway": "10.88.7.1/24", "AuxAddresses": {} }],
        "IPv6Data": [],
    })
}

fn endpoint(digit: &str, address: &str) -> Value {
    json!({
        "NetworkID": id("a"),
        "EndpointID": id(digit),
        "Interface": { "Address": address, "AddressIPv6": "", "MacAddress": "" },
        "Options": { "com.docker.network.portmap": [] },
    })
}

fn join(digit: &str) -> Value {
    json!({ "NetworkID": id("a"), "EndpointID": id(digit), "SandboxKey": "/run/no/netns",
        "Options": {} })
}

#[test]
fn docker_finds_the_driver() {
    let bench = Bench::new();
    bench.serve();
    let activated = bench.call("Plugin.Activate", &Value::Null);
    assert_eq!(activated["Implements"], json!(["NetworkDriver"]));
    assert_eq!(bench.done("GetCapabilities", &json!({}))["Scope"], "local");
    bench.done("DiscoverNew", &json!({ "DiscoveryType": 1 }));
    let info = bench.done("EndpointOperInfo", &join("b"));
    assert_eq!(info, json!({ "Value": {} }));
}

#[test]
fn records_survive_the_driver() {
    let bench = Bench::new();
    bench.serve();
    bench.done("CreateNetwork", &network(&bench));
    let made = bench.done("CreateEndpoint", &endpoint("b", "10.88.7.2/24"));
    assert_eq!(
        made["Interface"],
        json!({ "MacAddress": "02:bb:bb:bb:bb:bb" })
    );
    bench.serve();
    bench.fails("Join", &join("b"), "no machine answers at");
    // Docker has lost the first endpoint and assigns its address again.
    bench.done("CreateEndpoint", &endpoint("c", "10.88.7.2/24"));
    bench.fails("Join", &join("b"), "unknown to the driver");
    bench.done("DeleteNetwork", &json!({ "NetworkID": id("a") }));
    bench.fails("Join", &join("c"), "unknown to the driver");
    let again = endpoint("d", "10.88.7.2/24");
    bench.fails("CreateEndpoint", &again, "docker network rm");
    for folder in ["state/networks", "run/endpoints"] {
        assert_eq!(fs::read_dir(bench.path(folder)).unwrap().count(), 0);
    }
}

#[test]
fn removal_of_unknown_endpoints_succeeds() {
    let bench = Bench::new();
    bench.serve();
    for call in ["RevokeExternalConnectivity", "Leave", "DeleteEndpoint"] {
        bench.done(call, &join("b"));
    }
    bench.done("DeleteNetwork", &json!({ "NetworkID": id("a") }));
}

#[test]
fn wrong_arguments_end_only_their_call() {
    let bench = Bench::new();
    bench.serve();
    bench.done("CreateNetwork", &network(&bench));
    for (call, argument, why) in [
        (
            "CreateNetwork",
            json!({ "NetworkID": "../../etc/passwd" }),
            "hexadecimal",
        ),
        (
            "CreateNetwork",
            json!({ "NetworkID": id("A") }),
            "hexadecimal",
        ),
        (
            "CreateNetwork",
            json!({ "NetworkID": id("b"), "IPv4Data": 7 }),
            "expected a sequence",
        ),
        ("CreateNetwork", Value::Null, "argument"),
        ("CreateEndpoint", json!([]), "argument"),
        ("CreateEndpoint", endpoint("b", ""), "without an address"),
        ("Join", json!({ "EndpointID": id("b") }), "SandboxKey"),
        (
            "ProgramExternalConnectivity",
            json!({ "EndpointID": id("b") }),
            "unknown",
        ),
    ] {
        bench.fails(call, &argument, why);
    }
    let deep = "[".repeat(100_000);
    let long = format!("POST /NetworkDriver.Join HTTP/1.1\r\nContent-Length: 100000\r\n\r\n{deep}");
    assert!(bench.raw(long.as_bytes()).contains("Err"));
    let unknown = b"POST /NetworkDriver.Other HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
    assert!(bench.raw(unknown).starts_with("HTTP/1.1 404 "));
    bench.done("CreateEndpoint", &endpoint("b", "10.88.7.2/24"));
}

#[test]
fn junk_and_silence_do_not_stop_the_server() {
    let bench = Bench::new();
    bench.serve();
    let silent: Vec<_> = (0..48).map(|_| bench.connect()).collect();
    let mut half = bench.connect();
    half.write_all(b"POST /NetworkDriver.Join HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        .unwrap();
    assert!(bench.raw(b"\0\0\0\0").starts_with("HTTP/1.1 400 "));
    assert!(bench.raw(&[b'A'; HEAD_MAX]).starts_with("HTTP/1.1 431 "));
    bench.done("GetCapabilities", &json!({}));
    drop((silent, half));
    bench.done("GetCapabilities", &json!({}));
}

#[test]
fn a_network_that_cannot_be_recorded_is_rejected() {
    let bench = Bench::new();
    bench.serve();
    fs::remove_dir(bench.path("state/networks")).unwrap();
    bench.fails("CreateNetwork", &network(&bench), "cannot write to");
    bench.fails(
        "CreateEndpoint",
        &endpoint("b", "10.88.7.2/24"),
        "unknown to the driver",
    );
    fs::create_dir(bench.path("state/networks")).unwrap();
    bench.done("CreateNetwork", &network(&bench));
}
