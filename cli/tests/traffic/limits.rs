//! Traffic to a guest stays within its limit, for any amount and any number of senders.

use crate::attach::{NAMES, address, reaches, stream, stream_to};
use crate::machine::{Machine, text};
use serde_json::Value;
use std::fs;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testing::{StopOnDrop, flood, wait_until};

/// Limit of the second guest, bytes per second.
const RATE: f64 = 100_000.0;
/// Burst of the second guest, bytes.
const BURST: f64 = 20_000.0;
const LIMITED: &str = "rate_to_guest_mbps = 0.8\nburst_to_guest_bytes = 20000\n";

/// Names of the places that send: a wire, a port on this system, and a guest without a limit.
const SENDERS: [&str; 3] = ["wire0", "host0", "free"];
/// Limits of further guests, Mbit/s.
const RATES: [f64; 3] = [10.0, 50.0, 100.0];

/// Returns the machine's file with these keys in its second guest's interface.
fn file(paths: &[String], more: &str) -> String {
    let guest = |(place, netns): (usize, &String)| {
        let (name, address) = (NAMES[place], address(place));
        let more = if place == 1 { more } else { "" };
        format!(
            "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"tap\"\n\
             netns = \"{netns}\"\nifname = \"{name}\"\naddresses = [\"{address}/24\"]\n{more}"
        )
    };
    paths.iter().enumerate().map(guest).collect()
}

fn start(more: &str) -> Option<Machine> {
    Machine::start(&["ping"], &NAMES, |paths| file(paths, more))
}

/// Reloads the file with these keys in the second guest's interface.
fn reload(machine: &Machine, more: &str) {
    let places = machine.places.iter();
    let paths: Vec<String> = places
        .map(|(netns, _)| netns.path().display().to_string())
        .collect();
    let name = machine.folder.path().join("machine.toml");
    fs::write(&name, file(&paths, more)).unwrap();
    let said = machine.grantway(&["reload", &name.display().to_string()]);
    let way = text(&said.stdout);
    assert!(way.starts_with("change c1 in place: vif 1: "), "{said:?}");
}

fn stat(machine: &Machine) -> Value {
    machine.ask(&["stat", "driver"])["driver"].clone()
}

/// Returns the number of packets that the queue towards the second guest has dropped.
fn dropped_packets(machine: &Machine) -> u64 {
    let stat = stat(machine);
    let queue = &stat["ports"]["vif.c1-0"]["egress_queue"];
    let count = |cause: &str| queue[cause].as_u64().unwrap();
    count("full") + count("codel") + count("late")
}

/// Returns the bytes of frames delivered to the second guest.
fn sent_bytes(machine: &Machine) -> u64 {
    let traffic = &stat(machine)["ports"]["vif.c1-0"]["traffic"];
    traffic["out_bytes"].as_u64().unwrap()
}

/// Sends datagrams from one place to another until the limit has dropped some.
fn flooded(machine: &Machine, (from, to): (usize, usize), bytes: usize) -> (f64, Duration) {
    // Each sender has a separate port, so that its late datagrams do not count as another's.
    let port = 9000 + from as u16;
    let bind = |place: usize| {
        let bind = || UdpSocket::bind((address(place), port)).unwrap();
        machine.places[place].0.enter(bind).unwrap()
    };
    let before = dropped_packets(machine);
    flood((&bind(from), &bind(to)), bytes, || {
        dropped_packets(machine) > before
    })
}

/// Small frames take the driver domain's fast path, large frames the slow path.
#[test]
fn no_guest_receives_more_than_its_limit() {
    let Some(machine) = start(LIMITED) else {
        return;
    };
    reaches(&machine, 0, 1);
    for (from, bytes) in [(0, 100), (2, 1400)] {
        let (got, took) = flooded(&machine, (from, 1), bytes);
        let most = RATE * took.as_secs_f64() * 1.2 + BURST;
        assert!(got <= most, "{got} bytes in {took:?}");
    }
    machine.end();
}

/// Waits for an interval in which the bytes that `sent` counts grow at `least` Mbit/s each.
fn wait_for_rates<const N: usize>(
    interval: Duration,
    sent: impl Fn() -> [u64; N],
    least: [f64; N],
) {
    wait_until("a stream stays below its limit", || {
        let (begin, before) = (Instant::now(), sent());
        thread::sleep(interval);
        let now = sent();
        let took = begin.elapsed().as_secs_f64();
        let bytes = now.iter().zip(before).map(|(now, before)| now - before);
        let mbps: Vec<f64> = bytes.map(|it| it as f64 * 8.0 / 1e6 / took).collect();
        println!("{mbps:?} Mbit/s");
        mbps.iter().zip(least).all(|(mbps, least)| *mbps >= least)
    });
}

/// Both one stream and eight streams reach the limit, because excess packets wait.
#[test]
fn streams_reach_the_limit() {
    const MBPS: f64 = 20.0;
    let Some(machine) = start(&format!("rate_to_guest_mbps = {MBPS}\n")) else {
        return;
    };
    reaches(&machine, 0, 1);
    let stop = AtomicBool::new(false);
    for streams in [1, 8_u16] {
        stop.store(false, Ordering::Relaxed);
        let carried = AtomicU64::new(0);
        thread::scope(|scope| {
            let stops = StopOnDrop(&stop);
            let (machine, stop, carried) = (&machine, &stop, &carried);
            let one = |n| scope.spawn(move || stream_to(machine, (0, 1), 7000 + n, stop, carried));
            let streaming: Vec<_> = (0..streams).map(one).collect();
            // A busy machine may delay the streams in either interval.
            let (interval, least) = (Duration::from_secs(2), [0.9 * MBPS]);
            wait_for_rates(interval, || [sent_bytes(machine)], least);
            drop(stops);
            streaming.into_iter().for_each(|it| it.join().unwrap());
        });
    }
    machine.end();
}

/// Returns the configuration of a machine with these senders and limited guests.
fn with_rates(names: &[String], paths: &[String]) -> String {
    let end = |place: usize| {
        let (name, netns, address) = (&names[place], &paths[place], address(place));
        format!("ifname = \"{name}\"\nnetns = \"{netns}\"\naddresses = [\"{address}/24\"]\n")
    };
    let nic = |place: usize, kind: &str| {
        let (name, end) = (&names[place], end(place));
        format!("[[nic]]\nname = \"{name}\"\nkind = \"{kind}\"\n{end}")
    };
    let guest = |place: usize| {
        let (name, end) = (&names[place], end(place));
        format!("[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"tap\"\n{end}")
    };
    let limited = RATES.iter().enumerate().map(|(n, mbps)| {
        let guest = guest(SENDERS.len() + n);
        format!("{guest}rate_to_guest_mbps = {mbps}\n")
    });
    nic(0, "tap") + &nic(1, "local") + &guest(2) + &limited.collect::<String>()
}

/// Waits for a second in which one stream to each limited guest reaches most of its limit.
fn reach_the_limits(machine: &Machine, from: usize) {
    let guests = SENDERS.len()..SENDERS.len() + RATES.len();
    guests.clone().for_each(|to| reaches(machine, from, to));
    let (stop, carried) = (AtomicBool::new(false), AtomicU64::new(0));
    let sent = || {
        let ports = stat(machine)["ports"].clone();
        RATES.map(|mbps| {
            let traffic = &ports[format!("vif.g{mbps}-0")]["traffic"];
            traffic["out_bytes"].as_u64().unwrap()
        })
    };
    thread::scope(|scope| {
        let stops = StopOnDrop(&stop);
        let (stop, carried) = (&stop, &carried);
        let one = |to| scope.spawn(move || stream_to(machine, (from, to), 7000, stop, carried));
        let streaming: Vec<_> = guests.map(one).collect();
        println!("from {}:", SENDERS[from]);
        wait_for_rates(Duration::from_secs(1), sent, RATES.map(|limit| 0.8 * limit));
        drop(stops);
        streaming.into_iter().for_each(|it| it.join().unwrap());
    });
}

/// Streams from a wire, from this system and from another guest reach the limits of several guests
/// at the same time.
#[test]
fn one_stream_from_any_sender_reaches_each_limit() {
    let senders = SENDERS.iter().map(|name| (*name).to_owned());
    let limited = RATES.iter().map(|mbps| format!("g{mbps}"));
    let names: Vec<String> = senders.chain(limited).collect();
    let machine = Machine::start_alone(&["ping"], &names, |paths| with_rates(&names, paths));
    let Some(machine) = machine else { return };
    for from in 0..SENDERS.len() {
        reach_the_limits(&machine, from);
    }
    machine.end();
}

/// A stream continues while its limit is set and removed.
#[test]
fn a_limit_changes_under_a_stream() {
    let Some(machine) = start("") else {
        return;
    };
    reaches(&machine, 0, 1);
    assert_eq!(dropped_packets(&machine), 0);
    let (stop, carried) = (AtomicBool::new(false), AtomicU64::new(0));
    let comes = |most: u64| {
        let since = carried.load(Ordering::Relaxed);
        wait_until("the stream is stalled", || {
            carried.load(Ordering::Relaxed) - since >= most
        });
    };
    thread::scope(|scope| {
        let stops = StopOnDrop(&stop);
        let streaming = scope.spawn(|| stream(&machine, (0, 1), &stop, &carried));
        comes(1 << 20);
        reload(&machine, "rate_to_guest_mbps = 8\n");
        let (begin, before) = (Instant::now(), sent_bytes(&machine));
        comes(1 << 20);
        let got = (sent_bytes(&machine) - before) as f64;
        let took = begin.elapsed().as_secs_f64();
        assert!(
            got <= 1e6 * took * 1.2 + 131_072.0,
            "{got} bytes in {took} s"
        );
        reload(&machine, "");
        comes(16 << 20);
        drop(stops);
        streaming.join().unwrap();
    });
    machine.end();
}
