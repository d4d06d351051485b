//! Unmodified programs across a machine with a wire and two guests on TAPs: `ping`, `curl`,
//! `iperf3` and `tcpdump`.

use crate::machine::{Machine, text};
use crate::processes::kill;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::Value;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use testing::{Running, wait_for, wait_until};

/// Bytes of the file that `curl` transfers.
pub(crate) const FILE_BYTES: usize = 100_000_000;

pub(crate) const WIRE: usize = 0;
pub(crate) const WEB: usize = 1;
pub(crate) const DB: usize = 2;
pub(crate) const NAMES: [&str; 3] = ["wire", "web", "db"];
pub(crate) const IPV4: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
pub(crate) const IPV6: [&str; 3] = ["fd00::1", "fd00::2", "fd00::3"];

/// Every path that traffic can take.
pub(crate) const PATHS: [(usize, usize); 4] = [(WIRE, WEB), (WEB, WIRE), (WEB, DB), (DB, WEB)];

/// Starts a machine with the usual configuration. Returns `None` and logs why if it cannot run
/// here.
fn start(needed: &[&str]) -> Option<Machine> {
    start_with("", needed)
}

/// Starts a machine whose configuration begins with `switches`.
pub(crate) fn start_with(switches: &str, needed: &[&str]) -> Option<Machine> {
    Machine::start(needed, &NAMES, |namespaces| config(switches, namespaces))
}

pub(crate) fn config(switches: &str, namespaces: &[String]) -> String {
    let end = |n: usize| {
        format!(
            "ifname = \"{}\"\nnetns = \"{}\"\naddresses = [\"{}/24\", \"{}/64\"]\n",
            NAMES[n], namespaces[n], IPV4[n], IPV6[n]
        )
    };
    let guest = |n: usize| {
        format!(
            "[[guest]]\nname = \"{}\"\n[[guest.vif]]\nendpoint = \"tap\"\n{}",
            NAMES[n],
            end(n)
        )
    };
    format!(
        "{switches}\n[[nic]]\nname = \"wire\"\nkind = \"tap\"\n{}{}{}",
        end(WIRE),
        guest(WEB),
        guest(DB)
    )
}

/// Runs `ping` on every path, over IPv4, over IPv6, and with fragments.
pub(crate) fn ping_every_way(machine: &Machine) {
    for (from, to) in PATHS {
        for (family, address) in [("-4", IPV4[to]), ("-6", IPV6[to])] {
            let run = machine.run(
                from,
                "ping",
                &[family, "-c", "5", "-i", "0.05", "-w", "60", address],
            );
            let out = text(&run.stdout);
            assert!(run.status.success(), "{} to {address}: {out}", NAMES[from]);
            assert!(!out.contains("DUP!"), "{out}");
        }
        // This datagram is fragmented.
        let run = machine.run(
            from,
            "ping",
            &["-c", "2", "-i", "0.05", "-w", "60", "-s", "8000", IPV4[to]],
        );
        assert!(run.status.success(), "{}", text(&run.stdout));
    }
}

#[test]
fn ping_and_ping6_pass_on_every_path() {
    let Some(machine) = start(&["ping"]) else {
        return;
    };
    ping_every_way(&machine);
    machine.end();
}

/// Transfers a file of `bytes` random bytes with `curl` on every path.
pub(crate) fn carry_files(machine: &Machine, bytes: usize) {
    let file = SomeFile::new(machine, bytes);
    for (from, to) in PATHS {
        file.carry(from, (to, IPV4[from]), &[]);
    }
}

/// Runs `work`, and at the same time `disturb` repeatedly with pauses. Repeats `work` until
/// `disturb` has run at least `times` times, because disturbances are slow on a slow machine. Work
/// is slow there, too, so the number of disturbances is limited to four times as many.
pub(crate) fn disturbed(
    times: usize,
    pause: Duration,
    work: impl Fn() + Sync,
    mut disturb: impl FnMut(usize),
) {
    let so_far = AtomicUsize::new(0);
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            // The loop is bounded, so it ends even if `disturb` never runs.
            for _ in 0..100 {
                work();
                if so_far.load(Ordering::Relaxed) >= times {
                    break;
                }
            }
        });
        while !working.is_finished() && so_far.load(Ordering::Relaxed) < 4 * times {
            disturb(so_far.load(Ordering::Relaxed));
            so_far.fetch_add(1, Ordering::Relaxed);
            thread::sleep(pause);
        }
    });
    let so_far = so_far.into_inner();
    assert!(so_far >= times, "disturbed {so_far} times");
}

/// A file of random bytes.
pub(crate) struct SomeFile<'m> {
    machine: &'m Machine,
    folder: TempDir,
    content: Vec<u8>,
}

impl<'m> SomeFile<'m> {
    pub(crate) fn new(machine: &'m Machine, bytes: usize) -> Self {
        let content = random(bytes);
        Self {
            machine,
            folder: folder_with(&content),
            content,
        }
    }

    /// Fetches the file with `curl` from place `from`, whose address is `address`.
    pub(crate) fn carry(&self, from: usize, (to, address): (usize, &str), args: &[&str]) {
        let server = self.serve(from, address);
        let url = format!("http://{address}:8000/file");
        let all = ["-sS", "--max-time", "900", &url];
        let run = self.machine.run(to, "curl", &[&all, args].concat());
        let way = format!("{from} to {to}");
        assert!(run.status.success(), "{way}: {}", text(&run.stderr));
        let (sent, arrived) = (&self.content, &run.stdout);
        assert_eq!(sent.len(), arrived.len(), "{way}: bytes");
        let differs = sent
            .iter()
            .zip(arrived)
            .position(|(sent, received)| sent != received);
        assert_eq!(differs, None, "{way}: the first byte that differs");
        drop(server);
    }

    fn serve(&self, from: usize, address: &str) -> Running {
        let folder = self.folder.path().to_str().unwrap();
        let args = ["-m", "http.server", "--bind", address, "--directory"];
        let args = [&args[..], &[folder, "8000"]].concat();
        let server = self.machine.spawn(from, "python3", &args);
        self.machine.wait_for_listener(from, 8000);
        server
    }
}

fn random(bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    SplitMix64::seed_from_u64(1).fill_bytes(&mut content);
    content
}

/// Returns a folder with `file`, on the first disk with enough space. The disk for temporary files
/// may be small.
fn folder_with(content: &[u8]) -> TempDir {
    let mut full = None;
    for place in [env!("CARGO_TARGET_TMPDIR"), "/tmp", "/dev/shm"] {
        let written = TempDir::new_in(place).and_then(|folder| {
            fs::write(folder.path().join("file"), content)?;
            Ok(folder)
        });
        match written {
            Ok(folder) => return folder,
            Err(error) => full = Some(format!("{place}: {error}")),
        }
    }
    panic!("no place for a file of {} bytes: {full:?}", content.len());
}

pub(crate) const FOR_FILES: &[&str] = &["curl", "python3"];

#[test]
fn files_of_100_mb_arrive_unchanged() {
    let Some(machine) = start(FOR_FILES) else {
        return;
    };
    carry_files(&machine, FILE_BYTES);
    machine.end();
}

#[test]
fn files_arrive_with_every_setting() {
    for switches in [
        "[driver]\ngrants = \"copy\"",
        "[driver]\ngrants = \"map\"",
        "[driver]\ngrants = \"persistent\"",
        "[driver]\ngrants = \"counted\"",
        "[driver]\ngrants = \"flip\"\n[buffers]\nsize = \"full\"",
        "[driver]\noffloads = \"none\"",
        "[driver]\noffloads = \"checksum\"",
        "[buffers]\nsize = \"full\"",
        "[buffers]\nto_guest = 64\nfrom_guest = 32",
        "[ring]\nslots = 256",
        "[ring]\nformat = \"xen\"",
    ] {
        let Some(machine) = start_with(switches, FOR_FILES) else {
            return;
        };
        eprintln!("{switches}");
        carry_files(&machine, 5_000_000);
        machine.end();
    }
}

/// With every mechanism that can revoke pages, pages leave the pool of receive buffers under
/// traffic and return. Every byte arrives, and at the end free pages are not granted.
#[test]
fn files_arrive_while_pages_are_recycled() {
    const THRESHOLD: u64 = 4;
    const BYTES: usize = 5_000_000;
    for grants in ["counted", "copy", "map"] {
        let switches = format!(
            "[driver]\ngrants = \"{grants}\"\n[buffers]\nsize = \"full\"\nto_guest = 256\n\
             spare = 64\nrelease_threshold = {THRESHOLD}"
        );
        let Some(machine) = start_with(&switches, FOR_FILES) else {
            return;
        };
        carry_files(&machine, BYTES);
        // The last packets may still be in flight.
        let pool = wait_for("free pages are still granted", || {
            let stat = machine.ask(&["stat", "web"]);
            let pool = stat["web"]["vifs"]["0"]["pool"].clone();
            println!("{grants}: {pool}");
            (pool["granted"].as_u64()? <= 256 + THRESHOLD).then_some(pool)
        });
        let of = |key: &str| {
            pool[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{key}: {pool}"))
        };
        assert_eq!(of("pages"), 256 + 64);
        assert!(of("revoked") > 0 && of("refused") == 0, "{grants}: {pool}");
        assert_eq!(of("granted"), 256 + of("granted_anew") - of("revoked"));
        // A buffer is a page here, and every byte has arrived in a page.
        assert!(
            of("buffers_posted") > BYTES as u64 / 4096,
            "{grants}: {pool}"
        );
        machine.end();
    }
}

/// Pages are exchanged together with their frames. Every byte arrives, no domain owns more pages
/// than before, and no domain gets the pages of a guest that exits.
#[test]
fn files_arrive_in_exchanged_pages() {
    const PAGES: u64 = 128;
    for (grants, lro) in [
        ("flip", "none"),
        ("flip", "physical"),
        ("flip-copy", "none"),
    ] {
        let switches = format!(
            "[driver]\ngrants = \"{grants}\"\n[buffers]\nsize = \"full\"\nto_guest = {PAGES}\n\
             [lro]\nat = \"{lro}\""
        );
        let started = Machine::start(FOR_FILES, &NAMES, |namespaces| {
            let all = config(&switches, namespaces);
            all.replace(
                "name = \"web\"\n[[guest.vif]]",
                "name = \"web\"\nrestart = false\n[[guest.vif]]",
            )
        });
        let Some(machine) = started else {
            return;
        };
        let owned = |machine: &Machine| -> Vec<u64> {
            let audit = machine.ask(&["grants"]);
            assert_eq!(audit["leaked"], 0, "{audit}");
            let domains = audit["domains"].as_array().unwrap().iter();
            domains.map(|of| of["owned"].as_u64().unwrap()).collect()
        };
        let before = owned(&machine);
        carry_files(&machine, 5_000_000);
        wait_until("the numbers of pages differ", || owned(&machine) == before);
        let stat = machine.ask(&["stat", "driver"]);
        let web = &stat["driver"]["ports"]["vif.web-0"]["counters"]["to_guest_drops"];
        assert_eq!(web["grant"], 0, "{grants}, {lro}: {stat}");
        // A guest has two exchanges with two ends each. Its death removes one end of each, and the
        // driver releases the other.
        let status = machine.ask(&["status"]);
        assert!(kill(status["domains"][1]["pid"].as_u64().unwrap()));
        wait_until("pages are not returned", || {
            let now = owned(&machine);
            println!("{now:?} of {before:?}");
            now == [before[0] - PAGES, 0, before[2]]
        });
        // The NIC no longer receives into pages of the dead guest's exchange.
        SomeFile::new(&machine, 1_000_000).carry(WIRE, (DB, IPV4[WIRE]), &[]);
        machine.end();
    }
}

/// Runs both ends of `iperf3`. Returns the client's report.
fn iperf3(machine: &Machine, from: usize, to: usize, args: &[&str]) -> Value {
    let server = machine.spawn(to, "iperf3", &["-s", "-1"]);
    machine.wait_for_listener(to, 5201);
    let mut all = vec!["-c", IPV4[to], "-J", "-t", "2"];
    all.extend(args);
    let run = machine.run(from, "iperf3", &all);
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    assert!(run.status.success(), "{report}");
    drop(server);
    report
}

#[test]
fn iperf3_with_four_streams_passes_on_every_path() {
    let Some(machine) = start(&["iperf3"]) else {
        return;
    };
    for (from, to) in PATHS {
        let report = iperf3(&machine, from, to, &["-P", "4", "-C", "cubic"]);
        let bits = report["end"]["sum_received"]["bits_per_second"]
            .as_f64()
            .unwrap();
        assert!(bits > 20e6, "{} to {}: {bits} b/s", NAMES[from], NAMES[to]);
        let streams = report["end"]["streams"].as_array().unwrap();
        assert!(
            streams
                .iter()
                .all(|stream| stream["receiver"]["bytes"].as_u64() > Some(0))
        );
    }
    machine.end();
}

/// Returns the number of counted losses: frames that the driver domain and the kernels' interfaces
/// dropped, and datagrams that exceeded socket buffers.
fn counted_losses(machine: &Machine) -> u64 {
    let stat = machine.ask(&["stat", "driver"]);
    let drops = stat["driver"]["drops"].as_object().unwrap();
    let dropped: u64 = drops.values().map(|count| count.as_u64().unwrap()).sum();
    let of_kernel = || {
        let read = |file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
        // Each direction of an interface has eight columns: bytes, packets, errors, drops, and four
        // others.
        let interfaces = read("dev");
        let columns = interfaces.lines().filter_map(|line| line.split_once(':'));
        let drops = columns.map(|(_, columns)| {
            let column = |at| columns.split_whitespace().nth(at).unwrap();
            [3, 11]
                .map(|at| column(at).parse::<u64>().unwrap())
                .iter()
                .sum::<u64>()
        });
        // A line of names precedes the line of values.
        let snmp = read("snmp");
        let mut udp = snmp.lines().filter(|line| line.starts_with("Udp: "));
        let mut words = || udp.next().unwrap().split_whitespace();
        let at = words().position(|name| name == "RcvbufErrors").unwrap();
        drops.sum::<u64>() + words().nth(at).unwrap().parse::<u64>().unwrap()
    };
    let kernels = machine
        .places
        .iter()
        .map(|(place, _)| place.enter(of_kernel).unwrap());
    dropped + kernels.sum::<u64>()
}

/// A receiver without CPU time loses datagrams that its socket cannot hold. The number of losses
/// depends on the machine, but each loss must be counted.
#[test]
fn iperf3_over_udp_passes_on_every_path() {
    let Some(machine) = start(&["iperf3"]) else {
        return;
    };
    for (from, to) in PATHS {
        // The datagrams are sent in one frame and in several fragments.
        for size in ["1400", "8000"] {
            let before = counted_losses(&machine);
            let report = iperf3(&machine, from, to, &["-u", "-b", "5M", "-l", size]);
            let sum = &report["end"]["sum"];
            let [sent, lost] = ["packets", "lost_packets"].map(|key| sum[key].as_u64().unwrap());
            // 156 of the longer ones, or fewer on a busy system.
            assert!(sent > 15 && lost < sent, "{sum}");
            let counted = counted_losses(&machine) - before;
            let way = format!("{} to {}, {size}", NAMES[from], NAMES[to]);
            assert!(
                lost <= counted,
                "{way}: {lost} of {sent} lost, {counted} counted"
            );
        }
    }
    machine.end();
}

/// Returns the lengths of a capture's packets on the wire.
fn packet_lengths(capture: &[u8]) -> Vec<u32> {
    let word = |at: usize| {
        let bytes = capture.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    assert!(
        matches!(word(0), Some(0xa1b2_c3d4 | 0xa1b2_3c4d)),
        "a little-endian capture"
    );
    let mut at = 24;
    let mut lengths = Vec::new();
    while let (Some(kept), Some(length)) = (word(at + 8), word(at + 12)) {
        lengths.push(length);
        at += 16 + kept as usize;
    }
    lengths
}

#[test]
fn only_frames_of_the_mtu_are_on_the_wire() {
    let Some(machine) = start(&["iperf3", "tcpdump"]) else {
        return;
    };
    for (from, to) in [(WEB, WIRE), (WIRE, WEB)] {
        let lengths = lengths_of(&machine, (WIRE, NAMES[WIRE]), 500, || {
            iperf3(&machine, from, to, &[]);
        });
        assert_eq!(lengths.iter().max(), Some(&1514));
    }
    machine.end();
}

/// Returns the lengths of the first TCP packets that `tcpdump` captures on an interface during
/// `work`. Waits until more than `full` of these packets are full frames.
pub(crate) fn lengths_of(
    machine: &Machine,
    (place, interface): (usize, &str),
    full: usize,
    work: impl FnOnce(),
) -> Vec<u32> {
    // The kernel buffers 64 MB of waiting packets.
    let args = ["-i", interface, "-s", "80", "-B", "65536", "-c", "20000"];
    let args = [&args[..], &["-U", "-w", "capture", "tcp"]].concat();
    let tcpdump = machine.spawn(place, "tcpdump", &args);
    let capture = machine.folder.path().join("capture");
    wait_until("tcpdump does not start", || {
        fs::metadata(&capture).map_or(0, |file| file.len()) >= 24
    });
    work();
    // tcpdump may not have read all packets yet. It must read them before it is interrupted.
    let lengths = wait_for("too few full frames", || {
        let lengths = packet_lengths(&fs::read(&capture).unwrap());
        let seen = lengths.iter().filter(|length| **length == 1514).count();
        println!("{seen} full frames of {}", lengths.len());
        (seen > full).then_some(lengths)
    });
    tcpdump.interrupt();
    fs::remove_file(capture).unwrap();
    lengths
}

#[test]
fn segments_reach_another_guest_uncut() {
    let Some(machine) = start(&["iperf3"]) else {
        return;
    };
    let before = read_counters(&machine).unwrap();
    iperf3(&machine, WEB, DB, &["-C", "cubic"]);
    let after = read_counters(&machine).unwrap();
    let mean = (after.0 - before.0) / (after.1 - before.1).max(1);
    assert!(mean > 3000, "{mean} bytes per packet");
    machine.end();
}

/// Returns the numbers of bytes and packets that the guest "db" has received on its TAP.
fn read_counters(machine: &Machine) -> Option<(u64, u64)> {
    let text = machine.places[DB]
        .0
        .enter(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default())
        .ok()?;
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("db:"))?;
    let mut numbers = line
        .split_whitespace()
        .map(|number| number.parse().unwrap_or(0));
    Some((numbers.next()?, numbers.next()?))
}

/// A machine with a local NIC, which supports every offload, and a guest.
#[test]
fn a_local_nic_passes_all_traffic() {
    let config = |paths: &[String]| {
        format!(
            "[[nic]]\nname = \"own\"\nkind = \"local\"\nifname = \"own\"\nnetns = \"{}\"\n\
             addresses = [\"{}/24\"]\n\
             [[guest]]\nname = \"web\"\n[[guest.vif]]\nendpoint = \"tap\"\nifname = \"web\"\n\
             netns = \"{}\"\naddresses = [\"{}/24\"]\n",
            paths[WIRE], IPV4[WIRE], paths[WEB], IPV4[WEB]
        )
    };
    let Some(machine) = Machine::start(&["ping", "iperf3"], &["own", "web"], config) else {
        return;
    };
    for (from, to) in [(WIRE, WEB), (WEB, WIRE)] {
        let args = ["-c", "3", "-i", "0.05", "-w", "60", IPV4[to]];
        let run = machine.run(from, "ping", &args);
        assert!(run.status.success(), "{run:?}");
        let report = iperf3(&machine, from, to, &["-C", "cubic"]);
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
        assert!(bits > Some(20e6), "{from} to {to}: {bits:?} b/s");
    }
    // The local NIC accepts unsegmented packets, so software segments nothing.
    let stat = machine.ask(&["stat", "driver"]);
    assert_eq!(stat["driver"]["software"]["segments"], 0, "{stat}");
    machine.end();
}
