//! Peers driven by arbitrary bytes. Each function panics if the device breaks a promise.

use super::front::FrontEnd;
use super::rig::{Rig, offer};
use super::session::Session;
use crate::features::virtio;
use nic::Notified;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::AsFd;

/// The unread rest of the fuzzer's input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        for byte in &mut bytes {
            *byte = self.byte().unwrap_or(0);
        }
        u64::from_le_bytes(bytes)
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map_while(|_| self.byte()).collect()
    }
}

/// Runs a front end that sends arbitrary messages and bytes, with and without descriptors, to a
/// device whose driver runs.
pub fn messages(bytes: &[u8]) {
    let mut input = Input(bytes);
    let features = virtio::VERSION_1 | virtio::MRG_RXBUF;
    let mut rig = match input.byte().unwrap_or(0) % 2 {
        0 => Rig::connected(offer(2), 16),
        _ => Rig::running(offer(2), 16, features),
    };
    rig.fast = bytes.len().is_multiple_of(2);
    for _ in 0..64 {
        let Some(choice) = input.byte() else { break };
        let fds: Vec<_> = (0..usize::from(choice >> 4))
            .map(|n| match n % 3 {
                0 => rig.front.file.as_fd(),
                1 => rig.front.rings[0].kick.as_fd(),
                _ => rig.front.socket.as_fd(),
            })
            .collect();
        match choice % 4 {
            0 => {
                let count = usize::from(input.byte().unwrap_or(0));
                super::front::send(&rig.front.socket, &input.bytes(count), &fds);
            }
            1 => {
                let request = u32::from(input.byte().unwrap_or(0)) % 48;
                let count = usize::from(input.byte().unwrap_or(0));
                rig.front
                    .send(request, u32::from(choice & 8), &input.bytes(count), &fds);
            }
            _ => {
                let request = u32::from(input.byte().unwrap_or(0)) % 40;
                let ring = u64::from(input.byte().unwrap_or(0) % 6);
                let value = input.u64() >> (input.byte().unwrap_or(0) % 64);
                let payload = [ring | value << 32, value, value ^ ring, ring << 12];
                let payload: Vec<u8> = payload.into_iter().flat_map(u64::to_le_bytes).collect();
                rig.front
                    .send(request, u32::from(choice & 8), &payload, &fds);
            }
        }
        rig.serve();
        use_ports(&mut rig);
        while rig.front.reply().is_some() {}
    }
    // The device must still serve the next virtual machine.
    rig.front = FrontEnd::new(2, 16).0;
    rig.serve();
    rig.restart_with(features);
    assert_serves(&mut rig);
}

/// Runs a driver that writes arbitrary descriptors and indices, on a valid connection.
pub fn rings(bytes: &[u8]) {
    let mut input = Input(bytes);
    let choice = input.byte().unwrap_or(0);
    let mut features = virtio::VERSION_1 | virtio::INDIRECT_DESC;
    if choice & 1 != 0 {
        features |= virtio::MRG_RXBUF;
    }
    if choice & 2 != 0 {
        features |= virtio::EVENT_IDX;
    }
    if choice & 4 != 0 {
        features |= virtio::CSUM | virtio::HOST_TSO4 | virtio::GUEST_CSUM | virtio::GUEST_TSO4;
    }
    let mut rig = Rig::running(offer(1), 16, features);
    if choice & 8 != 0 {
        log(&mut rig);
    }
    rig.fast = choice & 16 == 0;
    for _ in 0..256 {
        let Some(choice) = input.byte() else { break };
        let ring = usize::from(choice & 1);
        match choice >> 1 & 7 {
            0..=2 => {
                let descriptor = super::driver::Descriptor {
                    gpa: super::front::GPA.wrapping_add(input.u64() >> ((choice >> 4) * 4)),
                    bytes: (input.u64() >> ((choice >> 4) * 4)) as u32,
                    flags: u16::from(input.byte().unwrap_or(0) & 7),
                    next: u16::from(input.byte().unwrap_or(0) % 20),
                };
                let index = u16::from(choice >> 4);
                rig.front.rings[ring].ring.describe(index, descriptor);
            }
            3 | 4 => {
                let ring = &mut rig.front.rings[ring].ring;
                ring.offer(u16::from(choice >> 4));
                ring.publish();
            }
            5 => {
                // Write anywhere in the first page of the ring.
                let at = input.u64() as usize % 4096;
                let bytes = input.bytes(usize::from(choice >> 4));
                rig.front.rings[ring].ring.put(at, &bytes);
            }
            6 => {
                rig.front.rings[ring].ring.publish();
                use_ports(&mut rig);
            }
            _ => use_ports(&mut rig),
        }
    }
    use_ports(&mut rig);
    assert!(!rig.front.is_closed(), "a ring never ends the connection");
}

/// Begins a migration, with a bit for each page of the memory.
fn log(rig: &mut Rig) {
    const BYTES: u64 = 64 << 10;
    let file = memfd_create("log", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&file, BYTES).expect("memory");
    let payload = [BYTES, 0].map(u64::to_le_bytes).concat();
    rig.request(6, &payload, &[file]).expect("a reply");
    let features = virtio::LOG_ALL | virtio::PROTOCOL_FEATURES;
    rig.number(2, rig.front.features | features);
    for ring in 0..2 {
        rig.ring_addresses(ring, 1);
    }
}

/// Moves frames in both directions, and checks that every buffer returns to the pool.
fn use_ports(rig: &mut Rig) {
    for port in 0..rig.ports.len() {
        rig.ports[port].disarm();
        let mut frames = rig.rx(port, 64);
        for frame in &mut frames {
            assert!(frame.len() >= 14 && frame.len() <= 65_535 + 18);
            frame.recycle(&mut rig.pool);
        }
        for len in [60, 1514] {
            let report = rig.tx_bytes(port, &vec![0x5a; len]);
            let lost = report.full + report.fault + report.refused;
            let all = report.sent + lost + report.waiting;
            assert_eq!(all, 1, "each frame is counted once");
        }
        rig.ports[port].arm();
        rig.ports[port].has_work();
    }
    assert_eq!(rig.buffers_out(), 0, "every buffer returns to the pool");
}

/// Checks that a frame passes in each direction.
fn assert_serves(rig: &mut Rig) {
    let frame: Vec<u8> = (0..100).collect();
    let sent = [&[0; 12][..], &frame].concat();
    rig.front
        .post(1, &[sent.len()], false, &sent)
        .expect("room");
    assert_eq!(rig.rx_bytes(0), std::slice::from_ref(&frame));
    rig.front.post(0, &[2048], false, &[]).expect("room");
    assert_eq!(rig.tx_bytes(0, &frame).sent, 1);
    let received = rig.front.received(0, 12).expect("a frame");
    assert_eq!(received[12..], frame);
}
