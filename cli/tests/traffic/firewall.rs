//! Firewall rules with real traffic. Denied frames reach no socket. If a NIC writes directly to a
//! guest's pages, the headers of denied frames do not reach these pages.

use crate::machine::{Machine, text};
use crate::pages::Pages;
use crate::queues::{count, driver, vmq};
use testing::wait_for;

/// The denied port.
const DENIED: u16 = 4001;
/// The allowed port.
const ALLOWED: u16 = 4002;
const DATAGRAMS: u64 = 200;

/// Returns a configuration of a wire with dedicated queues, and a guest with rules.
fn config(namespaces: &[String], queues: &str, rules: &str) -> String {
    format!(
        "[[nic]]\nname = \"wire\"\nkind = \"tap\"\nifname = \"wire\"\nnetns = \"{}\"\n\
         addresses = [\"10.9.0.1/24\", \"fd09::1/64\"]\n{queues}\n\
         [[guest]]\nname = \"web\"\n[[guest.vif]]\nendpoint = \"tap\"\nifname = \"web\"\n\
         netns = \"{}\"\naddresses = [\"10.9.0.2/24\", \"fd09::2/64\"]\n{rules}",
        namespaces[0], namespaces[1]
    )
}

/// Returns a rule that denies one UDP port.
fn deny_port(name: &str) -> String {
    format!(
        "[[guest.vif.rule]]\nname = \"{name}\"\naction = \"deny\"\ndirection = \"to-guest\"\n\
         protocol = \"udp\"\ndestination_ports = {DENIED}\n"
    )
}

fn start(queues: &str, rules: &str) -> Option<Machine> {
    Machine::start(&["python3", "ping"], &["wire", "web"], |namespaces| {
        config(namespaces, queues, rules)
    })
}

const VMQ: &str = "queues = \"vmq\"";

/// A program that sends datagrams to two ports alternately. Each datagram contains its port at the
/// start of its data, and again beyond the first 128 bytes of the frame.
const SENDER: &str = r#"
import socket, sys, time
address, times, ports = sys.argv[1], int(sys.argv[2]), [int(port) for port in sys.argv[3:]]
s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
for n in range(times):
    for port in ports:
        head = b"HEAD-%d-OF-IT " % port
        body = b"BODY-%d-OF-IT " % port
        s.sendto(head * 2 + b"." * 200 + body * 50, (address, port))
    time.sleep(0.001)
"#;

/// A program that counts the datagrams to each port. It exits when all datagrams to the last port
/// have arrived and no more arrive for half a second, or later if some were lost.
const RECEIVER: &str = r#"
import select, socket, sys, time
times, ports = int(sys.argv[1]), [int(port) for port in sys.argv[2:]]
SO_RCVBUFFORCE = 33
sockets = {}
for port in ports:
    for family in (socket.AF_INET, socket.AF_INET6):
        s = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        s.bind(("", port))
        sockets[s] = port
counts = {port: 0 for port in ports}
print("ready", flush=True)
idle, end = 0, time.monotonic() + 120
while idle < (5 if counts[ports[-1]] >= times else 100) and time.monotonic() < end:
    ready, _, _ = select.select(list(sockets), [], [], 0.1)
    idle = 0 if ready else idle + 1 if sum(counts.values()) else 0
    for s in ready:
        s.recv(65536)
        counts[sockets[s]] += 1
print(*[counts[port] for port in ports])
"#;

/// Returns the numbers of datagrams that the sockets of the denied and of the allowed port receive.
fn exchange(machine: &Machine, address: &str) -> [u64; 2] {
    let ports = [DENIED, ALLOWED].map(|port| port.to_string());
    let ports = ports.each_ref().map(String::as_str);
    let times = DATAGRAMS.to_string();
    let args = [&["-c", RECEIVER, &times][..], &ports].concat();
    let mut receiver = machine.spawn(1, "python3", &args);
    receiver.line_with("ready");
    // After a ping both ends have resolved each other's address.
    let ping = machine.run(0, "ping", &["-c", "3", "-i", "0.3", "-w", "60", address]);
    assert!(ping.status.success(), "{ping:?}");
    let args = [&["-c", SENDER, address, &times][..], &ports].concat();
    let sent = machine.run(0, "python3", &args);
    assert!(sent.status.success(), "{sent:?}");
    let out = text(&receiver.output().stdout);
    let last = out.lines().last().unwrap_or_default();
    let counts: Vec<u64> = last
        .split(' ')
        .map(|count| count.parse().unwrap())
        .collect();
    counts.try_into().unwrap()
}

/// BR-18, with the shared queue and a dedicated queue, with and without LRO.
#[test]
fn denied_frames_reach_no_socket() {
    for queues in ["", VMQ] {
        let Some(machine) = start(queues, &deny_port("no-4001")) else {
            return;
        };
        for (address, times) in [("10.9.0.2", 1), ("fd09::2", 2)] {
            let [denied, allowed] = exchange(&machine, address);
            assert_eq!(denied, 0, "{queues} {address}");
            assert!(
                allowed > DATAGRAMS * 9 / 10,
                "{queues} {address}: {allowed}"
            );
            let stat = driver(&machine);
            let rule = &stat["ports"]["vif.web-0"]["rules"]["no-4001"];
            assert_eq!(count(&rule["frames"]), times * DATAGRAMS, "{rule}");
            assert!(count(&rule["bytes"]) > times * DATAGRAMS * 900, "{rule}");
            assert_eq!(stat["drops"]["firewall"], times * DATAGRAMS, "{stat}");
        }
        machine.end();
    }
}

/// Sends packets to the denied port, and returns the driver's trace of the next packet from the
/// wire.
fn trace_denied_packet(machine: &Machine) -> String {
    let port = DENIED.to_string();
    let args = ["-c", SENDER, "10.9.0.2", "1000000", &port];
    let _sender = machine.spawn(0, "python3", &args);
    wait_for("no denied packet is traced", || {
        let trace = machine
            .ask(&["trace", "driver", "--wait", "60"])
            .to_string();
        trace.contains("firewall").then_some(trace)
    })
}

/// VMQ-14, end to end: the test searches the guest's pages.
#[test]
fn a_denied_header_never_reaches_the_guest() {
    let Some(machine) = start(VMQ, &deny_port("no-4001")) else {
        return;
    };
    if vmq(&machine).is_some() {
        assert_eq!(exchange(&machine, "10.9.0.2")[0], 0);
        let vmq = vmq(&machine).unwrap();
        assert_eq!(vmq["queues"][0]["split"], true, "{vmq}");
        assert!(count(&vmq["direct_packets"]) > DATAGRAMS, "{vmq}");
        let pages = Pages::of_guest(&machine, "web");
        let has = |part: &str, port: u16| pages.contain(format!("{part}-{port}-OF-IT").as_bytes());
        assert!(
            has("HEAD", ALLOWED) && has("BODY", ALLOWED),
            "the scanner finds allowed frames"
        );
        assert!(!has("HEAD", DENIED), "the header of a denied frame");
        assert!(
            has("BODY", DENIED),
            "the bytes behind the header arrive, as documented"
        );
        let trace = trace_denied_packet(&machine);
        assert!(trace.contains("rule no-4001 of vif.web-0"), "{trace}");
    }
    machine.end();
}

/// VMQ-15.
#[test]
fn shared_firewall_excludes_a_dedicated_queue() {
    let rules = format!("firewall = \"shared\"\n{}", deny_port("no-4001"));
    let Some(machine) = start(VMQ, &rules) else {
        return;
    };
    if vmq(&machine).is_some() {
        assert_eq!(exchange(&machine, "10.9.0.2")[0], 0);
        let vmq = vmq(&machine).unwrap();
        assert_eq!(count(&vmq["direct_packets"]), 0, "{vmq}");
        let pages = Pages::of_guest(&machine, "web");
        let has = |part: &str, port: u16| pages.contain(format!("{part}-{port}-OF-IT").as_bytes());
        assert!(has("BODY", ALLOWED), "the scanner finds allowed frames");
        assert!(!has("HEAD", DENIED) && !has("BODY", DENIED));
    }
    machine.end();
}

/// XDP-20, end to end, with rules of the interface and of the wire. No byte of a denied frame ever
/// reaches the guest's pages, and the port with the rule counts the frame.
#[test]
fn frames_denied_by_the_kernel_never_arrive() {
    testing::require!(af_xdp);
    let of_guest = deny_port("no-4001");
    let of_wire = of_guest
        .replace("guest.vif", "nic")
        .replace("to-guest", "from-wire");
    for (wire_rules, guest_rules, port) in
        [("", &*of_guest, "vif.web-0"), (&*of_wire, "", "nic.wire")]
    {
        let machine = Machine::start(&["python3", "ping"], &["wire", "web"], |namespaces| {
            let queues = format!("{VMQ}\nvmq_queues = 1\n{wire_rules}");
            let guest = format!("pdev = \"wire:1\"\n{guest_rules}");
            let text = config(namespaces, &queues, &guest);
            let text = text.replacen("kind = \"tap\"", "kind = \"xdp\"", 1);
            format!("[driver]\ngrants = \"counted\"\n{text}")
        });
        let Some(machine) = machine else { return };
        for (address, times) in [("10.9.0.2", 1), ("fd09::2", 2)] {
            let [denied, allowed] = exchange(&machine, address);
            assert_eq!(denied, 0, "{port} {address}");
            assert!(allowed > DATAGRAMS * 9 / 10, "{port} {address}: {allowed}");
            let stat = driver(&machine);
            let rule = &stat["ports"][port]["rules"]["no-4001"];
            assert_eq!(count(&rule["frames"]), times * DATAGRAMS, "{rule}");
            assert!(count(&rule["bytes"]) > times * DATAGRAMS * 900, "{rule}");
            assert_eq!(stat["drops"]["firewall"], times * DATAGRAMS, "{stat}");
            let queue = &stat["ports"]["vif.web-0"]["queue"];
            assert_eq!(queue["denied"], times * DATAGRAMS, "{queue}");
            assert!(count(&queue["direct_packets"]) > times * DATAGRAMS * 9 / 10);
        }
        let pages = Pages::of_guest(&machine, "web");
        let has = |part: &str, port: u16| pages.contain(format!("{part}-{port}-OF-IT").as_bytes());
        assert!(
            has("HEAD", ALLOWED) && has("BODY", ALLOWED),
            "the scanner finds allowed frames"
        );
        assert!(!has("HEAD", DENIED) && !has("BODY", DENIED));
        machine.end();
    }
}
