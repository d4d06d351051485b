//! A hostile netfront, which `cargo xtask xen hostile` runs in a Xen guest without a kernel
//! netfront. It performs the attacks on a backend that need Xen; `vif::attacks` has those that
//! concern only the contents of rings.
//!
//! Each attack reconnects, and requires one reaction of the driver: end this interface, or answer
//! each request once and continue. After each attack the driver must serve the interface again. The
//! caller checks whether other guests are affected. Two entries are not attacks, but use features
//! that Linux's netfront does not use.

mod control;
mod front;
mod groups;
mod pages;

use front::{CLOSED, CONNECTED, Front, INITIALISING, Link, Outcome, within};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vif::netif::{RxRequest, RxResponse, TxRequest, TxResponse, rsp, txf};

/// Duration of a storm.
const STORM_TIME: Duration = Duration::from_secs(3);
/// A grant reference that this guest has not granted.
const NOT_GRANTED: u32 = 60_000;

/// The name, which begins with the row in SPECIFICATION's table of attacks, and the attack.
type Attack = (&'static str, fn(&mut Front) -> Outcome);

const ATTACKS: [Attack; 17] = [
    ("control-ring", control::control_ring),
    ("groups", groups::groups),
    ("01-producer-index", producer_index),
    ("01-producer-index-of-buffers", producer_index_of_buffers),
    ("03-garbage", garbage),
    ("04-double-fetch", double_fetch),
    ("05-too-many-slots", too_many_slots),
    ("05-endless-packet", endless_packet),
    ("06-offsets-and-lengths", offsets_and_lengths),
    ("07-parts-beyond-the-packet", parts_beyond_the_packet),
    ("10-event-storm", event_storm),
    ("13-references-not-granted", references_not_granted),
    ("13-buffers-not-granted", buffers_not_granted),
    ("13-rings-not-granted", rings_not_granted),
    ("15-grants-end-while-used", grants_end_while_used),
    ("23-closed-under-load", closed_under_load),
    ("24-nonsense-in-the-store", nonsense_in_the_store),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => {
            println!("HOSTILE done");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("HOSTILE fail {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome {
    let mut front = Front::new()?;
    for (name, attack) in ATTACKS {
        attack(&mut front).map_err(|why| format!("{name}: {why}"))?;
        let after = front.is_served();
        after.map_err(|why| format!("after {name}: {why}"))?;
        println!("HOSTILE ok {name}");
    }
    Ok(())
}

/// Checks that the driver answers each of these requests once with an error, and continues to serve
/// the interface.
fn refused(link: &Link, requests: &[[u32; 3]]) -> Outcome {
    let from = link.tx.rsp_prod();
    link.send(requests);
    let answers = link.answers(from, requests.len())?;
    match answers.iter().find(|answer| answer.status != rsp::ERROR) {
        None => Ok(()),
        Some(other) => Err(format!("answered with {other:?}")),
    }
}

fn producer_index(front: &mut Front) -> Outcome {
    for beyond in [257, 1 << 31, u32::MAX] {
        let link = front.connect()?;
        link.tx.set_req_prod(beyond);
        link.channel.notify();
        front.await_state(CLOSED)?;
    }
    Ok(())
}

/// The driver reads the index only when it has a packet for this guest, so broadcasts arrive
/// continuously.
fn producer_index_of_buffers(front: &mut Front) -> Outcome {
    let link = front.connect()?;
    link.rx.set_req_prod(1000);
    link.channel.notify();
    front.await_state(CLOSED)
}

/// Sends requests with arbitrary contents: the driver answers each once, or ends the interface.
fn garbage(front: &mut Front) -> Outcome {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as u32
    };
    for _ in 0..8 {
        let link = front.connect()?;
        for _ in 0..20 {
            let from = link.tx.rsp_prod();
            let requests: Vec<[u32; 3]> = (0..60)
                .map(|n| {
                    // Some requests name an existing page.
                    let gref = if n % 2 == 0 { link.gref(n) } else { word() };
                    [gref, word(), word()]
                })
                .collect();
            link.send(&requests);
            let all = || Ok(link.tx.rsp_prod() == link.tx.req_prod());
            if link.answers(from, 1).is_err() || !within(all)? {
                // The packet is incomplete, so the driver waits for the rest, or it has ended the
                // interface.
                break;
            }
        }
    }
    Ok(())
}

/// Changes the size of a request continuously while the driver reads it.
fn double_fetch(front: &mut Front) -> Outcome {
    let link = front.connect()?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let sizes = [60, 0, u16::MAX, 5000];
            for n in 0.. {
                for slot in 0..256 {
                    let size = sizes[(n + slot as usize) % sizes.len()];
                    link.tx.request(slot, link.part(1, size, 0).encode());
                }
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let end = Instant::now() + STORM_TIME;
        let mut sent = Ok(());
        while Instant::now() < end && sent.is_ok() {
            let from = link.tx.rsp_prod();
            link.tx.set_req_prod(from.wrapping_add(200));
            link.channel.notify();
            sent = link.answers(from, 200).map(drop);
        }
        over.store(true, Ordering::Relaxed);
        sent
    })
}

/// Returns a packet of this many parts.
fn chain(link: &Link, parts: u16) -> Vec<[u32; 3]> {
    let part = |id: u16| {
        let more = if id + 1 < parts { txf::MORE_DATA } else { 0 };
        let size = if id == 0 { parts * 20 } else { 20 };
        link.part(id, size, more).encode()
    };
    (0..parts).map(part).collect()
}

fn too_many_slots(front: &mut Front) -> Outcome {
    let link = front.connect()?;
    refused(&link, &chain(&link, 41))
}

fn endless_packet(front: &mut Front) -> Outcome {
    let link = front.connect()?;
    let part = link.part(0, 20_000, txf::MORE_DATA).encode();
    link.send(&[part; 100]);
    front.await_state(CLOSED)
}

fn offsets_and_lengths(front: &mut Front) -> Outcome {
    let link = front.connect()?;
    for (offset, size) in [
        (0, 0),
        (0, 13),
        (4000, 200),
        (4095, 60),
        (4096, 60),
        (u16::MAX, 60),
        (0, 4097),
        (0, u16::MAX),
    ] {
        let bad = TxRequest {
            offset,
            ..link.part(3, size, 0)
        };
        refused(&link, &[bad.encode()]).map_err(|why| format!("{offset}+{size}: {why}"))?;
    }
    Ok(())
}

fn parts_beyond_the_packet(front: &mut Front) -> Outcome {
    let link = front.connect()?;
    let (first, second) = (link.part(0, 100, txf::MORE_DATA), link.part(1, 101, 0));
    refused(&link, &[first.encode(), second.encode()])
}

/// Sends notifications without requests, as fast as possible.
fn event_storm(front: &mut Front) -> Outcome {
    let link = front.connect()?;
    let end = Instant::now() + STORM_TIME;
    while Instant::now() < end {
        (0..1000).for_each(|_| link.channel.notify());
    }
    let from = link.tx.rsp_prod();
    link.send(&[link.part(9, 60, 0).encode()]);
    match link.answers(from, 1)?.as_slice() {
        [TxResponse { id: 9, status: 0 }] => Ok(()),
        other => Err(format!("after the storm: {other:?}")),
    }
}

fn references_not_granted(front: &mut Front) -> Outcome {
    let link = front.connect()?;
    // The toolstack has granted the first references to dom0, for the console and the xenstore.
    for gref in [NOT_GRANTED, 1 << 23, u32::MAX] {
        let bad = TxRequest {
            gref,
            ..link.part(5, 60, 0)
        };
        refused(&link, &[bad.encode()]).map_err(|why| format!("{gref}: {why}"))?;
    }
    Ok(())
}

/// Posts buffers to which the driver cannot write: it answers them with an error.
fn buffers_not_granted(front: &mut Front) -> Outcome {
    let link = front.connect()?;
    let bad = |id: u16| RxRequest {
        id,
        offset: 0,
        gref: NOT_GRANTED,
    };
    let buffers: Vec<_> = (0..4).map(|id| bad(id).encode()).collect();
    link.rx.send(&buffers);
    link.channel.notify();
    if !within(|| Ok(link.rx.rsp_prod() > 0))? {
        return Err("no broadcast arrived".into());
    }
    let answers = link.rx.responses(0).into_iter().map(RxResponse::decode);
    match answers.into_iter().find(|answer| answer.status >= 0) {
        None => Ok(()),
        Some(answer) => Err(format!(
            "the driver claims to have written a packet: {answer:?}"
        )),
    }
}

/// The driver cannot map a ring, or bind to the event channel.
fn rings_not_granted(front: &mut Front) -> Outcome {
    for name in ["tx-ring-ref", "rx-ring-ref", "event-channel"] {
        front.begin()?;
        let (_link, mut nodes) = front.link()?;
        for (_, value) in nodes.iter_mut().filter(|(node, _)| *node == name) {
            *value = NOT_GRANTED.to_string();
        }
        front.set(&nodes)?;
        front
            .await_state(CLOSED)
            .map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

/// The guest revokes its pages, including the rings, while requests name them.
fn grants_end_while_used(front: &mut Front) -> Outcome {
    for _ in 0..5 {
        let link = front.connect()?;
        link.post(100);
        for id in 0..100 {
            link.tx.send(&[link.part(id, 60, 0).encode()]);
        }
        link.channel.notify();
        drop(link);
    }
    Ok(())
}

/// Changes states under load, in every order.
fn closed_under_load(front: &mut Front) -> Outcome {
    for n in 0..20 {
        let link = front.connect()?;
        link.post(100);
        link.send(&[link.part(n, 60, 0).encode(); 100]);
        let states = [CLOSED, INITIALISING, CONNECTED, "5", "3", "99", "", "-1"];
        for k in 0..3 {
            front.set_state(states[usize::from(n + k) % states.len()])?;
        }
    }
    Ok(())
}

fn nonsense_in_the_store(front: &mut Front) -> Outcome {
    for (name, value) in [
        ("multi-queue-num-queues", "0"),
        ("multi-queue-num-queues", "4294967295"),
        ("tx-ring-ref", "-1"),
        ("tx-ring-ref", "\u{1b}[31m"),
        ("rx-ring-ref", "99999999999999999999"),
        ("event-channel", ""),
        ("event-channel-tx", "7"),
        ("request-rx-copy", "0"),
    ] {
        front.begin()?;
        let (_link, mut nodes) = front.link()?;
        nodes.retain(|(node, _)| *node != name);
        nodes.insert(0, (name, value.to_owned()));
        front.set(&nodes)?;
        let ended = front.await_state(CLOSED);
        ended.map_err(|why| format!("{name} {value:?}: {why}"))?;
        // An empty node counts as missing.
        front.set(&[(name, String::new())])?;
    }
    Ok(())
}
