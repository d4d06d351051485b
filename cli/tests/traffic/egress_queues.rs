//! Egress queues towards guests, combined with dedicated queues, several workers, and the death of
//! the driver domain.

use crate::attach::{address, reaches, replace, stream_to};
use crate::machine::Machine;
use crate::queues::{count, vmq};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testing::{StopOnDrop, wait_until};

const WIRE: usize = 0;
const LIMITED: usize = 1;
const FREE: usize = 2;
const NAMES: [&str; 3] = ["wire0", "limited", "free"];
const BUFFERS: u64 = 1024;

/// Starts a wire and two guests, one of which is limited to `mbps`.
fn start(driver: &str, wire: &str, mbps: f64) -> Option<Machine> {
    Machine::start(&["ping"], &NAMES, |paths| {
        let guest = |place: usize, more: &str| {
            let (name, address, netns) = (NAMES[place], address(place), &paths[place]);
            format!(
                "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"tap\"\n\
                 netns = \"{netns}\"\nifname = \"{name}\"\naddresses = [\"{address}/24\"]\n{more}"
            )
        };
        let limit = format!("rate_to_guest_mbps = {mbps}\n");
        format!(
            "[driver]\nrestart_pause_ms = 20\n{driver}\n[[nic]]\nname = \"wire\"\n\
             kind = \"tap\"\nifname = \"wire0\"\nbuffers = {BUFFERS}\nnetns = \"{}\"\n\
             addresses = [\"{}/24\"]\n{wire}\n{}{}",
            paths[WIRE],
            address(WIRE),
            guest(LIMITED, &limit),
            guest(FREE, ""),
        )
    })
}

/// Returns the `stat` of each of the driver domain's `workers`.
fn stats(machine: &Machine, workers: usize) -> Vec<Value> {
    let names = ["driver", "driver-1"].into_iter().take(workers);
    let stat = |name| machine.ask(&["stat", name])[name].clone();
    names.map(stat).collect()
}

/// Returns the bytes delivered to the limited guest, and its waiting frames.
fn limited(machine: &Machine, workers: usize) -> (u64, u64) {
    let stats = stats(machine, workers);
    let port = |stat: &Value| stat["ports"]["vif.limited-0"].clone();
    let ports: Vec<Value> = stats.iter().map(port).collect();
    let sent = ports.iter().map(|of| count(&of["traffic"]["out_bytes"]));
    let waits = ports.iter().map(|of| count(&of["egress_queue"]["frames"]));
    (sent.sum(), waits.sum())
}

/// Runs `body` during streams from the wire: `streams` streams to the limited guest, and one to the
/// other. `body` receives the counters of bytes that each of the two guests has received.
fn with_streams(machine: &Machine, streams: u16, body: impl FnOnce([&AtomicU64; 2])) {
    reaches(machine, WIRE, LIMITED);
    reaches(machine, WIRE, FREE);
    let (stop, carried) = (
        AtomicBool::new(false),
        [AtomicU64::new(0), AtomicU64::new(0)],
    );
    let [limited, free] = &carried;
    thread::scope(|scope| {
        let stops = StopOnDrop(&stop);
        let stop = &stop;
        let mut streaming: Vec<_> = (0..streams)
            .map(|n| {
                let way = (WIRE, LIMITED);
                scope.spawn(move || stream_to(machine, way, 7000 + n, stop, limited))
            })
            .collect();
        streaming.push(scope.spawn(|| stream_to(machine, (WIRE, FREE), 6000, stop, free)));
        body([limited, free]);
        drop(stops);
        streaming.into_iter().for_each(|it| it.join().unwrap());
    });
}

/// Waits until the limited guest receives nine tenths of its rate. It must never exceed its rate
/// and burst, and the other guest must receive more.
fn has_its_rate(machine: &Machine, workers: usize, mbps: f64, free: &AtomicU64) {
    wait_until("the streams stay below the limit", || {
        let (begin, before) = (Instant::now(), limited(machine, workers).0);
        let others = free.load(Ordering::Relaxed);
        thread::sleep(Duration::from_secs(2));
        let bits = (limited(machine, workers).0 - before) as f64 * 8.0;
        let took = begin.elapsed().as_secs_f64();
        // Each worker allows a separate burst.
        let most = mbps * 1e6 * took * 1.2 + workers as f64 * 8.0 * 131_072.0;
        assert!(bits <= most, "{bits} bits in {took} s");
        let others = (free.load(Ordering::Relaxed) - others) as f64 * 8.0;
        bits >= 0.9 * mbps * 1e6 * took && others > bits
    });
}

#[test]
fn frames_wait_beside_dedicated_queues() {
    const MBPS: f64 = 20.0;
    let Some(machine) = start("", "queues = \"vmq\"", MBPS) else {
        return;
    };
    if vmq(&machine).is_some() {
        with_streams(&machine, 2, |[_, free]| {
            has_its_rate(&machine, 1, MBPS, free);
            wait_until("no frame waits", || limited(&machine, 1).1 > 0);
        });
        let vmq = vmq(&machine).unwrap();
        assert!(count(&vmq["direct_packets"]) > 0, "{vmq}");
        assert_eq!(vmq["misdirected"], 0, "{vmq}");
    }
    machine.end();
}

/// Each worker has a share of the limit, and a queue for its flows.
#[test]
fn frames_wait_in_every_worker() {
    const MBPS: f64 = 20.0;
    let Some(machine) = start("workers = 2", "", MBPS) else {
        return;
    };
    with_streams(&machine, 8, |[_, free]| {
        has_its_rate(&machine, 2, MBPS, free);
        let waits = |stat: &Value| {
            let queue = &stat["ports"]["vif.limited-0"]["egress_queue"];
            count(&queue["frames"]) > 0 && count(&queue["oldest_ns"]) > 0
        };
        let mut seen = [false; 2];
        wait_until("a worker queues nothing", || {
            let stats = stats(&machine, 2);
            (0..2).for_each(|n| seen[n] |= waits(&stats[n]));
            seen == [true; 2]
        });
    });
    machine.end();
}

/// If the driver domain dies, waiting frames are lost. Streams retransmit them, and no buffer is
/// leaked.
#[test]
fn a_driver_death_with_queued_frames_leaks_nothing() {
    let Some(machine) = start("", "", 8.0) else {
        return;
    };
    let free_buffers = || {
        let stat = stats(&machine, 1).remove(0);
        count(&stat["ports"]["nic.wire"]["buffers_free"])
    };
    reaches(&machine, WIRE, LIMITED);
    let before = free_buffers();
    assert!(before > BUFFERS / 2, "{before}");
    with_streams(&machine, 2, |[slow, free]| {
        for _ in 0..3 {
            wait_until("no frame waits", || limited(&machine, 1).1 > 0);
            replace(&machine, "driver");
            let before = [slow, free].map(|carried| carried.load(Ordering::Relaxed));
            wait_until("the streams are stalled", || {
                let now = [slow, free].map(|carried| carried.load(Ordering::Relaxed));
                now.iter()
                    .zip(before)
                    .all(|(now, before)| *now > before + (1 << 20))
            });
        }
    });
    wait_until("buffers are not returned", || {
        limited(&machine, 1).1 == 0 && free_buffers() >= before
    });
    machine.end();
}
