//! An honest virtual machine.

use crate::connection::connected;
use crate::station;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use vhost_edge::features::virtio::{CTRL_VQ, EVENT_IDX, MQ, MRG_RXBUF, VERSION_1};
use vhost_edge::testing::{Remote, Session as _};

/// Entries of a ring.
const RING: u16 = 128;
/// Bytes of a buffer.
const BUFFER: usize = 2048;
/// Bytes of each frame of a flood.
const FRAME: usize = 1514;
/// Bytes of the header in front of a frame.
const HEADER: usize = 12;

/// Features of a virtual machine with one queue pair.
const FEATURES: u64 = VERSION_1 | MRG_RXBUF | EVENT_IDX;

/// Connects to a back end, and serves connections forever.
pub(crate) fn run(socket: &Path, address: Ipv4Addr, pairs: usize) -> anyhow::Result<()> {
    let mut vm = with_buffers(socket, pairs);
    let several = match pairs {
        1 => 0,
        _ => MQ | CTRL_VQ,
    };
    loop {
        connected(&mut vm, FEATURES | several);
        serve(&mut vm, address, pairs);
    }
}

/// Creates a socket, and serves the connections of a back end forever.
pub(crate) fn listen(socket: &Path, address: Ipv4Addr) -> anyhow::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let mut vm = with_buffers(socket, 1);
    loop {
        if vm.accept(&listener, FEATURES)? {
            serve(&mut vm, address, 1);
        }
    }
}

/// Returns a virtual machine that has posted buffers for frames.
fn with_buffers(socket: &Path, pairs: usize) -> Remote {
    let mut vm = Remote::new(socket, pairs, RING);
    for pair in 0..pairs {
        for _ in 0..RING / 2 {
            vm.front.post(2 * pair, &[BUFFER], false, &[]);
        }
    }
    vm
}

/// Sends frames to a MAC forever, as fast as the back end accepts them.
pub(crate) fn flood(socket: &Path, to: [u8; 6]) -> anyhow::Result<()> {
    let mut vm = Remote::new(socket, 1, RING);
    loop {
        connected(&mut vm, VERSION_1 | MRG_RXBUF);
        send(&mut vm, to);
    }
}

/// Sends on one connection until it closes.
fn send(vm: &mut Remote, to: [u8; 6]) {
    let Some(mac) = mac(vm) else { return };
    let mut frame = vec![0; HEADER + FRAME];
    frame[HEADER..HEADER + 6].copy_from_slice(&to);
    frame[HEADER + 6..HEADER + 12].copy_from_slice(&mac);
    loop {
        while vm.front.take_back(1).is_some() {}
        while vm.front.post(1, &[frame.len()], false, &frame).is_some() {}
        vm.front.kick(1);
        let call = PollFd::new(&vm.front.rings[1].call, PollFlags::IN);
        let mut all = [PollFd::new(&vm.front.socket, PollFlags::IN), call];
        if poll(&mut all, None).is_err() || all[0].revents() != PollFlags::empty() {
            return;
        }
        vm.front.was_called(1);
    }
}

/// Serves one connection until it closes.
fn serve(vm: &mut Remote, address: Ipv4Addr, pairs: usize) {
    let Some(mac) = mac(vm) else { return };
    if pairs > 1 {
        let [low, high] = (pairs as u16).to_le_bytes();
        vm.front.command(2 * pairs, &[4, 0, low, high]);
        vm.front.kick(2 * pairs);
    }
    let mut waiting = VecDeque::new();
    loop {
        for pair in 0..pairs {
            while turn(vm, pair, (mac, address), &mut waiting) {}
        }
        let rings = vm.front.rings.iter();
        let calls = rings.map(|ring| PollFd::new(&ring.call, PollFlags::IN));
        let socket = PollFd::new(&vm.front.socket, PollFlags::IN);
        let mut all: Vec<PollFd<'_>> = std::iter::once(socket).chain(calls).collect();
        let polled = poll(&mut all, None);
        let is_over = all[0].revents() != PollFlags::empty();
        if polled.is_err() || is_over {
            return;
        }
        for ring in 0..vm.front.rings.len() {
            vm.front.was_called(ring);
        }
    }
}

/// Answers the received frames, and returns whether more have arrived.
fn turn(
    vm: &mut Remote,
    pair: usize,
    (mac, address): ([u8; 6], Ipv4Addr),
    waiting: &mut VecDeque<Vec<u8>>,
) -> bool {
    let (receive, transmit) = (2 * pair, 2 * pair + 1);
    let mut received = 0;
    while let Some(mut frame) = vm.front.received(receive, HEADER) {
        vm.front.post(receive, &[BUFFER], false, &[]);
        received += 1;
        if station::answer(&mut frame[HEADER..], mac, address) {
            frame[..HEADER].fill(0);
            waiting.push_back(frame);
        }
    }
    while vm.front.take_back(transmit).is_some() {}
    let before = waiting.len();
    while let Some(frame) = waiting.front() {
        if vm
            .front
            .post(transmit, &[frame.len()], false, frame)
            .is_none()
        {
            break;
        }
        waiting.pop_front();
    }
    for (ring, any) in [(receive, received > 0), (transmit, waiting.len() < before)] {
        // Request a notification of every returned chain.
        let ring_of = &vm.front.rings[ring].ring;
        ring_of.set_used_event(ring_of.used);
        if any {
            vm.front.kick(ring);
        }
    }
    // The device may have returned chains before it read that request.
    fence(Ordering::SeqCst);
    let has_more = |ring: usize| {
        let ring = &vm.front.rings[ring].ring;
        ring.used_index() != ring.used
    };
    has_more(receive) || has_more(transmit)
}

/// Returns the MAC in the configuration space.
fn mac(vm: &mut Remote) -> Option<[u8; 6]> {
    let ask = [0_u32, 6, 0].map(u32::to_le_bytes).concat();
    let answer = vm.request(24, &[ask, vec![0; 6]].concat(), &[])?;
    answer.get(12..18)?.try_into().ok()
}
