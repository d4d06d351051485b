//! Guests with a stateful firewall, and the death of the driver domain that tracks their flows.

use crate::machine::{Machine, text};
use crate::processes::{domain, kill};
use crate::programs::{DB, FOR_FILES, IPV4, IPV6, NAMES, SomeFile, WEB, WIRE, config};
use serde_json::Value;
use std::fs;
use testing::{Running, wait_until};

const PROGRAMS: &[&str] = &["python3", "ping", FOR_FILES[0]];

/// Starts a wire and two guests that accept only replies.
fn start() -> Option<Machine> {
    Machine::start(PROGRAMS, &NAMES, |namespaces| {
        config("", namespaces).replace(
            "[[guest.vif]]\n",
            "[[guest.vif]]\nfirewall = \"stateful\"\n",
        )
    })
}

/// A server that accepts a connection. It sends a line when the file `go` exists, before the client
/// sends any data.
const SERVER: &str = r#"
import os, socket, sys, time
s = socket.create_server((sys.argv[1], 7000))
print("ready", flush=True)
c, _ = s.accept()
while not os.path.exists("go"):
    time.sleep(0.01)
c.sendall(b"hello\n")
c.close()
"#;

const CLIENT: &str = r#"
import socket, sys
s = socket.create_connection((sys.argv[1], 7000), 60)
print("connected", flush=True)
s.settimeout(120)
print(s.recv(100).decode())
"#;

/// A program that prints the outcome of a connection to a port, and of datagrams to a closed port,
/// after at most some seconds.
const CONNECT_SCRIPT: &str = r#"
import socket, sys, time
seconds = float(sys.argv[1])
def tcp(address):
    try:
        socket.create_connection((address, 7001), seconds)
        return "connected"
    except OSError as error:
        return type(error).__name__
def udp(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(1)
    s.connect((address, 9))
    end = time.time() + seconds
    while True:
        try:
            s.send(b"x")
            return s.recv(1)
        except OSError as error:
            if not isinstance(error, TimeoutError) or time.time() >= end:
                return type(error).__name__
print(*[f(address) for address in sys.argv[2:] for f in (tcp, udp)])
"#;

/// A program that sends SYNs from and to many ports, to fill the table.
const FLOOD: &str = r#"
import socket, struct, sys
source, destination, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
for n in range(count):
    ports = struct.pack("!HH", 1024 + n % 60000, 20000 + n // 60000)
    s.sendto(ports + struct.pack("!IIBBHHH", n, 0, 0x50, 2, 1000, 0, 0), (destination, 0))
"#;

/// An idle connection from a guest to the wire.
struct IdleConnection {
    server: Running,
    client: Running,
}

impl IdleConnection {
    fn begin(machine: &Machine, guest: usize) -> Self {
        let mut server = machine.spawn(WIRE, "python3", &["-c", SERVER, IPV4[WIRE]]);
        server.line_with("ready");
        let mut client = machine.spawn(guest, "python3", &["-c", CLIENT, IPV4[WIRE]]);
        client.line_with("connected");
        Self { server, client }
    }

    /// Makes the server send a line and the client receive it.
    fn end(self, machine: &Machine) {
        fs::write(machine.folder.path().join("go"), "").unwrap();
        assert_eq!(text(&self.client.output().stdout), "hello\n\n");
        assert!(self.server.output().status.success());
    }
}

/// Seconds within which something that must pass has passed, also on a busy system.
const PASSES: &str = "60";
/// Seconds without an answer after which something counts as denied.
const DENIED: &str = "1";

fn tries(machine: &Machine, from: usize, addresses: &[&str], seconds: &str) -> String {
    let args = [&["-c", CONNECT_SCRIPT, seconds], addresses].concat();
    let run = machine.run(from, "python3", &args);
    assert!(run.status.success(), "{run:?}");
    text(&run.stdout).trim_end().to_owned()
}

fn pings(machine: &Machine, from: usize, to: &str, size: &str, seconds: &str) -> bool {
    let args = ["-c", "2", "-i", "0.1", "-w", seconds, "-s", size, to];
    machine.run(from, "ping", &args).status.success()
}

fn flows(machine: &Machine, of: &str) -> Vec<Value> {
    let flows = machine.ask(&["flows", of])["flows"].clone();
    flows.as_array().unwrap().clone()
}

fn kill_driver(machine: &Machine, times: u64) {
    assert!(kill(domain(machine, "driver")["pid"].as_u64().unwrap()));
    wait_until("the driver domain does not return", || {
        let now = domain(machine, "driver");
        now["restarts"]["count"] == times && !now["restarts"]["connected_ns"].is_null()
    });
}

/// FW-1 … FW-6, end to end.
#[test]
fn a_guest_gets_replies_and_nothing_else() {
    let Some(machine) = start() else { return };
    let server = ["-m", "http.server", "--bind", "::", "7001"];
    let _servers = [WIRE, WEB].map(|place| machine.spawn(place, "python3", &server));
    for place in [WIRE, WEB] {
        machine.wait_for_listener(place, 7001);
    }
    // From the guest to the wire, TCP passes, and so does the ICMP error about a datagram.
    let known = "connected ConnectionRefusedError";
    let addresses = [IPV4[WIRE], IPV6[WIRE]];
    let passes = || {
        let answers = tries(&machine, WEB, &addresses, PASSES);
        assert_eq!(answers, format!("{known} {known}"));
        for size in ["56", "8000"] {
            for to in addresses {
                assert!(pings(&machine, WEB, to, size, PASSES), "{to} {size}");
            }
        }
    };
    // Flows like these last 30 s, and a connection is closed a moment after it was used.
    wait_until("a flow is not listed", || {
        passes();
        let flows = flows(&machine, "web");
        let has = |protocol: &str, state: &str| {
            flows.iter().any(|flow| {
                flow["protocol"] == protocol
                    && flow["state"] == state
                    && flow["direction"] == "from-guest"
            })
        };
        has("tcp", "closed") && has("udp", "asked") && has("icmp", "replied")
    });
    // From the wire or another guest to the guest, nothing passes.
    let unknown = "TimeoutError TimeoutError";
    for from in [WIRE, DB] {
        let answers = tries(&machine, from, &[IPV4[WEB], IPV6[WEB]], DENIED);
        assert_eq!(answers, format!("{unknown} {unknown}"), "{}", NAMES[from]);
        assert!(!pings(&machine, from, IPV4[WEB], "56", "3"));
    }
    SomeFile::new(&machine, 1_000_000).carry(WIRE, (WEB, IPV4[WIRE]), &[]);
    let stat = machine.ask(&["stat", "driver"]);
    let port = &stat["driver"]["ports"]["vif.web-0"];
    let denied = port["rules"]["inbound"]["frames"].as_u64().unwrap();
    assert!(denied >= 8, "{port}");
    assert!(stat["driver"]["drops"]["firewall_state"].as_u64().unwrap() >= denied);
    let refused = machine.grantway(&["flows", "wire"]);
    assert!(
        text(&refused.stderr).contains("no stateful rules"),
        "{refused:?}"
    );
    machine.end();
}

/// FW-10: connections need no new handshake. One connection carries data, and another one is idle
/// until the far end sends first.
#[test]
fn flows_outlive_the_driver_domain() {
    let Some(machine) = start() else { return };
    let idle = IdleConnection::begin(&machine, WEB);
    let file = SomeFile::new(&machine, 10_000_000);
    std::thread::scope(|scope| {
        let carry = || file.carry(WIRE, (WEB, IPV4[WIRE]), &["--limit-rate", "5M"]);
        let carried = scope.spawn(carry);
        for times in 1..=2 {
            kill_driver(&machine, times);
        }
        carried.join().unwrap();
    });
    // Three packets, or some more if the handshake was repeated on a busy system.
    let is_idle = |flow: &Value| {
        flow["state"] == "established"
            && flow["packets"]
                .as_u64()
                .is_some_and(|n| (3..10).contains(&n))
    };
    let flows = flows(&machine, "web");
    assert!(flows.iter().any(is_idle), "{flows:?}");
    idle.end(&machine);
    assert_eq!(
        tries(&machine, WIRE, &[IPV4[WEB]], DENIED),
        "TimeoutError TimeoutError"
    );
    machine.end();
}

/// FW-7, end to end: neither the flooding guest's connection nor another guest's is lost.
#[test]
fn a_guest_that_floods_hurts_no_flow() {
    for victim in [WEB, DB] {
        let Some(machine) = start() else { return };
        let idle = IdleConnection::begin(&machine, victim);
        let flood = ["-c", FLOOD, IPV4[DB], IPV4[WIRE], "30000"];
        let flood = machine.run(DB, "python3", &flood);
        assert!(flood.status.success(), "{flood:?}");
        let flows = flows(&machine, "db");
        assert!((1000..=4096).contains(&flows.len()), "{}", flows.len());
        SomeFile::new(&machine, 100_000).carry(WIRE, (victim, IPV4[WIRE]), &[]);
        idle.end(&machine);
        machine.end();
    }
}
