//! Attacks from inside a guest and from authorized clients, while other guests are active.

use crate::attach::{ResourceUsage, empty};
use crate::forged::{BROADCAST_MAC, mac};
use crate::machine::{Machine, text};
use crate::processes::pid;
use crate::programs::{DB, IPV4, NAMES, WEB, WIRE, config, ping_every_way};
use serde_json::Value;
use testing::{TIMEOUT, require, wait_until};

/// A program that sends frames with every kind of virtio header for some seconds. Most headers
/// contradict their frame. `kind` restricts the headers to one kind. The program prints the number
/// of frames that the kernel accepted.
const SENDER: &str = r#"
import random, socket, struct, sys, time
name, own, kind, seconds = sys.argv[1], bytes.fromhex(sys.argv[2]), sys.argv[3], sys.argv[4]
targets = [bytes.fromhex(mac) for mac in sys.argv[5:]]
PACKET_VNET_HDR = 15
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.setsockopt(263, PACKET_VNET_HDR, 1)
s.bind((name, 0))
rng = random.Random(1)

def ip4(protocol, n):
    to = bytes([10, 0, 0, rng.choice([1, 3])])
    head = struct.pack("!BBHHHBBH", 0x45, 0, n + 20, 1, 0, 64, protocol, 0)
    return b"\x08\x00" + head + bytes([10, 0, 0, 2]) + to

def ip6(protocol, n):
    own, to = (socket.inet_pton(socket.AF_INET6, at) for at in ("fd00::2", "fd00::1"))
    return b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, n, protocol, 64) + own + to

TCP = struct.pack("!HHIIBBHHH", 1, 2, 3, 4, 5 << 4, 0x10, 512, 0, 0)

def udp(n):
    return struct.pack("!HHHH", 1, 4789, n + 8, 0)

def vxlan(size):
    inner = own + own + ip4(6, size) + TCP
    return udp(size + 58) + bytes([8, 0, 0, 0, 0, 0, 1, 0]) + inner

def packet(size):
    ip, protocol, head = rng.choice([
        (ip4, 6, TCP), (ip6, 6, TCP), (ip4, 17, udp(size)), (ip6, 17, udp(size)),
        (ip4, 17, vxlan(size)), (ip4, rng.randrange(256), rng.randbytes(20)),
    ])
    return ip(protocol, min(len(head) + size, 65495)) + head + bytes(size)

def header(flags, kind, headers, size, start, offset):
    return struct.pack("=BBHHHH", flags, kind, headers, size, start, offset)

def nonsense():
    head = header(
        rng.choice([0, 1, 1, 1, 2, 3, 255]),
        rng.choice([0, 1, 1, 4, 4, 3, 5, 0x81, 0x84, 0xff]),
        rng.choice([0, 1, 54, 66, 65535]),
        rng.choice([0, 1, 7, 8, 100, 536, 1448, 1461, 9000, 65535]),
        rng.choice([0, 13, 14, 34, 54, 84, 104, 1000, 65535]),
        rng.choice([0, 6, 16, 6, 16, 65535]),
    )
    size = rng.choice([0, 1, 100, 1400, 9000, 30000, 60000])
    return head + rng.choice(targets) + own + packet(size)

def tiny():
    head = header(1, 1, 54, rng.choice([1, 8, 30]), 34, 16)
    return head + targets[0] + own + ip4(6, 60020) + TCP + bytes(60000)

def arp():
    head = bytes.fromhex("ffffffffffff") + own + bytes.fromhex("08060001080006040001") + own
    asked = bytes(6) + bytes([10, 0, 0, rng.randrange(256)])
    return bytes(10) + head + bytes([10, 0, 0, 2]) + asked

def unknown():
    return bytes(10) + bytes([2, 9]) + rng.randbytes(4) + own + packet(100)

def busy():
    return bytes(10) + targets[0] + own + ip4(17, 1408) + udp(1400) + bytes(1400)

make, end, took = globals()[kind], time.time() + float(seconds), 0
while time.time() < end:
    batch = [make() for _ in range(16)]
    for frame in batch * (1 if kind == "nonsense" else 16):
        try:
            s.send(frame)
            took += 1
        except OSError:
            pass
print(took)
"#;

fn start(nic: &str) -> Option<Machine> {
    Machine::start(&["python3", "ping", "ip"], &NAMES, |namespaces| {
        let config = config("", namespaces).replacen("kind = \"tap\"", nic, 1);
        let host = format!(
            "[[nic]]\nname = \"here\"\nkind = \"local\"\nifname = \"here\"\nnetns = \"{}\"\n",
            namespaces[DB]
        );
        let tape = "[[nic]]\nname = \"tape\"\nkind = \"pcap\"\nwrite = \"out.pcap\"\n";
        let (nics, guests) = config.split_at(config.find("[[guest]]").unwrap());
        format!("{nics}{host}{tape}{guests}")
    })
}

/// Starts the sender in the first guest for some seconds.
fn attack(machine: &Machine, kind: &str, seconds: &str) -> testing::Running {
    let [own, db, wire] = [WEB, DB, WIRE].map(|place| mac(machine, place));
    let args = [
        "-c",
        SENDER,
        NAMES[WEB],
        &own,
        kind,
        seconds,
        &wire,
        &db,
        BROADCAST_MAC,
    ];
    machine.spawn(WEB, "python3", &args)
}

/// A guest that sends invalid checksums and segments loses its frames but harms no other guest. The
/// frames are sent to a TAP, an AF_XDP socket, a capture, a local TAP and other guests.
#[test]
fn invalid_offloads_harm_no_other_guest() {
    require!(af_xdp);
    for nic in [
        "kind = \"tap\"\noffloads = \"tso\"",
        "kind = \"tap\"",
        "kind = \"xdp\"",
    ] {
        let Some(machine) = start(nic) else { return };
        let pids = || ["driver", "web", "db"].map(|name| pid(&machine, name));
        let before = pids();
        let attack = attack(&machine, "nonsense", "4");
        for (from, to) in [(DB, WIRE), (WIRE, DB)] {
            let args = ["-c", "10", "-i", "0.05", "-w", "60", IPV4[to]];
            let run = machine.run(from, "ping", &args);
            assert!(run.status.success(), "{nic}: {run:?}");
        }
        let sent = attack.output();
        let sent: u64 = text(&sent.stdout)
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("{sent:?}"));
        assert!(sent > 1000, "{sent}");
        assert_eq!(pids(), before, "a domain was restarted");
        ping_every_way(&machine);
        let stat = machine.ask(&["stat", "driver"]);
        let drops = &stat["driver"]["drops"];
        println!("{nic}: {sent} sent; {drops}");
        machine.end();
    }
}

/// Returns the 99th percentile of round-trip times from one guest to the wire, milliseconds, or
/// `None` with too few answers.
fn p99(machine: &Machine) -> Option<f64> {
    let args = ["-c", "400", "-i", "0.004", "-W", "10", IPV4[WIRE]];
    let run = machine.run(DB, "ping", &args);
    let out = text(&run.stdout);
    let times = out.split("time=").skip(1);
    let mut times: Vec<f64> = times
        .map(|rest| rest.split(' ').next().unwrap().parse().unwrap())
        .collect();
    if times.len() < 200 {
        eprintln!("{out}");
        return None;
    }
    times.sort_by(f64::total_cmp);
    Some(times[times.len() * 99 / 100])
}

/// `cargo xtask hostile` measures the guarantee, which is at most twice the delay that a merely
/// busy guest causes. This test uses the floods that cost a driver domain most, and allows ten
/// times that delay.
#[test]
fn a_flood_delays_like_a_busy_guest() {
    let Some(machine) = start("kind = \"tap\"\noffloads = \"tso\"") else {
        return;
    };
    let beside = |kind: &str| {
        let mut attack = attack(&machine, kind, "60");
        let delay = p99(&machine);
        assert!(!attack.is_over(), "{kind}");
        println!("delay during {kind}: {delay:?} ms");
        delay
    };
    // Other tests and programs run at the same time.
    wait_until("a neighbour's packets are delayed too long", || {
        let Some(busy) = beside("busy") else {
            return false;
        };
        ["arp", "unknown", "tiny", "nonsense"]
            .iter()
            .all(|kind| beside(kind).is_some_and(|it| it <= 20.0 * busy.max(1.0)))
    });
    machine.end();
}

/// A program that attaches and detaches guests in several loops, and also sends partial requests
/// and names of every length.
const FLOOD: &str = r#"
import json, socket, sys, threading, time
path, seconds, spaces = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
end, count = time.time() + seconds, {"attached": 0, "refused": 0, "huge": 0}

def ask(request):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(60)
    s.connect(path)
    s.sendall((json.dumps(request) + "\n").encode())
    return json.loads(s.makefile().readline())

# On a busy system, a request is not read whole before a newcomer needs its place, or there are too
# many newcomers. It has no effect then.
def surely(request):
    while True:
        try:
            return ask(request)
        except (ConnectionError, BlockingIOError):
            time.sleep(0.01)

def loop(i):
    name, netns = f"a{i}", spaces[i % len(spaces)]
    vif = {"endpoint": "tap", "ifname": name, "netns": netns, "addresses": [f"10.7.{i}.1/24"]}
    while time.time() < end:
        answer = surely({"op": "attach", "guest": {"name": name, "vif": [vif]}})
        count["attached" if "domain" in answer else "refused"] += 1
        surely({"op": "detach", "domain": name})

def half():
    kept = []
    while time.time() < end:
        s = socket.socket(socket.AF_UNIX)
        s.setblocking(False)
        try:
            s.connect(path)
            s.send(b'{"op":"attach","guest":{"name":"')
            kept = kept[-200:] + [s]
        except OSError:
            pass
        time.sleep(0.005)

def huge():
    while time.time() < end:
        for n in (64, 4096, 1 << 19):
            guest = {"name": "x" * n, "vif": [{"endpoint": "echo"}]}
            try:
                error = ask({"op": "attach", "guest": guest})["error"]
            except (ConnectionError, BlockingIOError):
                continue
            assert 10 < len(error) <= 1 << 16, len(error)
            count["huge"] += 1

threads = [threading.Thread(target=loop, args=(i,)) for i in range(8)]
threads += [threading.Thread(target=half), threading.Thread(target=huge)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(count))
"#;

#[test]
fn a_flood_of_attach_requests_leaks_nothing() {
    let Some(machine) = empty(&["python3"]) else {
        return;
    };
    let socket = machine.folder.path().join("run/grantway.sock");
    let socket = socket.display().to_string();
    let spaces: Vec<String> = machine
        .places
        .iter()
        .map(|(namespace, _)| namespace.path().display().to_string())
        .collect();
    let flood = |seconds: &str| -> Value {
        let mut args = vec!["-c", FLOOD, &socket, seconds];
        args.extend(spaces.iter().map(String::as_str));
        let run = machine.run(0, "python3", &args);
        assert!(run.stderr.is_empty(), "{run:?}");
        serde_json::from_slice(&run.stdout).unwrap()
    };
    // The first flood makes the manager and the driver allocate memory that they keep.
    flood("1");
    let before = ResourceUsage::when_stable(&machine);
    let count = flood("6");
    println!("{count}");
    assert!(count["attached"].as_u64() > Some(8), "{count}");
    assert!(count["huge"].as_u64() > Some(0), "{count}");
    let asked = std::time::Instant::now();
    assert_eq!(
        machine.ask(&["status"])["domains"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert!(asked.elapsed() < TIMEOUT);
    before.wait_until_released(&machine);
    machine.end();
}
