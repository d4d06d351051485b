//! Tests the driver of the Intel 82574.

use super::{BASE, BLANK, BUFFER, BUFFERS, ENTRIES, MTU, assert_complete, counter, frame, poll};
use nic::dma::QueueName;
use nic::dma::checksum;
use nic::dma::pci::intel::registers::IntelRegister;
use nic::dma::pci::intel::reset::IntelReset;
use nic::dma::pci::{
    AnyPciNic, CloseReason, Intel82574, PciDevice, PciNic, Registers, StartupError,
};
use nic::{Checksum, Frame, Nic, Offload, Pool};
use proptest::prelude::*;
use shmem::{Area, Fault, Span};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Status bits of a received frame: done, last buffer, checksum verified, checksum wrong.
const DONE: u64 = 1;
const LAST: u64 = 2;
const CHECKED: u64 = 1 << 5;
const WRONG: u64 = 1 << 29;
/// Bits of a transmit descriptor.
const REPORT: u64 = 1 << 27;
const EXTENDED: u64 = 1 << 29;
const IS_DATA: u64 = 1 << 20;
const INSERT: u64 = 1 << 41;

/// A model of the device: its registers, and the memory that it may access.
#[derive(Debug)]
struct Model {
    memory: Area,
    registers: RefCell<HashMap<IntelRegister, u32>>,
    /// A register whose writes have no effect.
    stuck: Option<IntelRegister>,
    resets: Cell<u32>,
    /// Whether a reset completes.
    completes: bool,
    /// Whether memory requests never complete.
    has_requests: bool,
    /// Start and field offset of the checksum in the last context descriptor.
    context: Cell<(usize, usize)>,
}

#[derive(Clone, Debug)]
struct Device(Rc<Model>);

impl Registers<IntelRegister> for Device {
    fn get(&self, register: IntelRegister) -> Result<u32, Fault> {
        let value = self.raw(register);
        Ok(match register {
            IntelRegister::Nvm => u32::from(self.0.completes) << 9,
            IntelRegister::Status => 2 | u32::from(self.0.has_requests) << 19,
            IntelRegister::Missed => {
                self.put(register, 0);
                value
            }
            _ => value,
        })
    }

    fn set(&self, register: IntelRegister, value: u32) -> Result<(), Fault> {
        if self.0.stuck == Some(register) {
            return Ok(());
        }
        if register == IntelRegister::Control && value & 1 << 26 != 0 {
            self.0.resets.set(self.0.resets.get() + 1);
            self.0.registers.borrow_mut().clear();
            return Ok(());
        }
        self.put(register, value);
        Ok(())
    }
}

impl Device {
    fn raw(&self, register: IntelRegister) -> u32 {
        let all = self.0.registers.borrow();
        all.get(&register).copied().unwrap_or(0)
    }

    fn put(&self, register: IntelRegister, value: u32) {
        self.0.registers.borrow_mut().insert(register, value);
    }

    fn span(&self, address: u64, len: usize) -> Span {
        super::device_span(self.0.memory, address, len)
    }

    /// Returns descriptor `number` of a ring.
    fn descriptor(&self, [low, high]: [IntelRegister; 2], number: u32) -> Span {
        let half = |register| u64::from(self.raw(register));
        let base = half(low) | half(high) << 32;
        self.span(base + 16 * u64::from(number), 16)
    }

    fn receive_descriptor(&self, number: u32) -> Span {
        self.descriptor(
            [IntelRegister::ReceiveBase, IntelRegister::ReceiveBaseHigh],
            number,
        )
    }

    /// Takes the next posted receive descriptor, and returns it with its buffer.
    fn next(&self) -> Option<(Span, Span)> {
        let (head, tail) = (IntelRegister::ReceiveHead, IntelRegister::ReceiveTail);
        let at = self.raw(head);
        assert_ne!(self.raw(IntelRegister::Receive) & 2, 0, "receiving is off");
        if at == self.raw(tail) {
            return None;
        }
        self.put(head, (at + 1) % u32::from(ENTRIES));
        let descriptor = self.receive_descriptor(at);
        let address = descriptor.load_u64(0).unwrap();
        Some((descriptor, self.span(address, BUFFER)))
    }

    /// Completes the next receive descriptor with `status` and `len`.
    fn complete(&self, status: u64, len: u64) {
        let (descriptor, _) = self.next().expect("no buffer is posted");
        descriptor.store_u64(0, u64::MAX).unwrap();
        descriptor.store_u64(8, status | len << 32).unwrap();
    }

    /// Stores a received frame in the next posted buffer.
    fn receive(&self, status: u64, frame: &[u8]) {
        let (descriptor, buffer) = self.next().expect("no buffer is posted");
        assert_eq!(descriptor.load_u64(8), Ok(0), "the status is not cleared");
        buffer.write(frame).unwrap();
        let word = DONE | LAST | status | (frame.len() as u64) << 32;
        descriptor.store_u64(8, word).unwrap();
    }

    /// Returns the next frame that the driver has posted, and completes it.
    fn send(&self) -> Option<Vec<u8>> {
        let ring = [IntelRegister::TransmitBase, IntelRegister::TransmitBaseHigh];
        assert_ne!(self.raw(IntelRegister::Transmit) & 2, 0, "sending is off");
        loop {
            let at = self.raw(IntelRegister::TransmitHead);
            if at == self.raw(IntelRegister::TransmitTail) {
                return None;
            }
            let next = (at + 1) % u32::from(ENTRIES);
            self.put(IntelRegister::TransmitHead, next);
            let descriptor = self.descriptor(ring, at);
            let words = [0, 8].map(|at| descriptor.load_u64(at).unwrap());
            assert_ne!(words[1] & EXTENDED, 0);
            if words[1] & IS_DATA == 0 {
                let byte = |shift: u32| (words[0] >> shift & 0xff) as usize;
                self.0.context.set((byte(32), byte(40)));
                continue;
            }
            let mut bytes = vec![0; (words[1] & 0xf_ffff) as usize];
            let in_page = words[0] as usize % abi::PAGE;
            assert!(
                in_page + bytes.len() <= abi::PAGE,
                "the buffer crosses a page"
            );
            self.span(words[0], bytes.len()).read(&mut bytes).unwrap();
            if words[1] & INSERT != 0 {
                let (start, field) = self.0.context.get();
                let place = (start as u16, (field - start) as u16);
                assert!(checksum::complete(&mut bytes, place));
            }
            assert_ne!(words[1] & REPORT, 0);
            descriptor.store_u64(8, words[1] | 1 << 32).unwrap();
            return Some(bytes);
        }
    }
}

fn model() -> Model {
    Model {
        memory: super::memory(),
        registers: RefCell::default(),
        stuck: None,
        resets: Cell::new(0),
        completes: true,
        has_requests: false,
        context: Cell::default(),
    }
}

fn start(model: Model) -> Result<(PciNic<Intel82574<Device>>, Device, Pool), StartupError> {
    let device = Device(Rc::new(model));
    let (nic, pool) = super::start(device.clone(), device.0.memory)?;
    Ok((nic, device, pool))
}

/// Returns a TCP packet over IPv4 and the offload that completes its checksum. `gap` unused bytes
/// precede the TCP header. The packet has a VLAN tag if `is_tagged`.
fn packet(gap: usize, is_tagged: bool) -> (Vec<u8>, Offload) {
    let tag = if is_tagged { 4 } else { 0 };
    let mut bytes = frame(14 + tag + 20 + gap + 40, 3);
    if is_tagged {
        bytes[12..16].copy_from_slice(&[0x81, 0, 0, 7]);
    }
    bytes[12 + tag..14 + tag].copy_from_slice(&[8, 0]);
    bytes[14 + tag] = 0x45;
    bytes[14 + tag + 9] = 6;
    let start = (34 + tag + gap) as u16;
    let checksum = Checksum::Blank { start, offset: 16 };
    let offload = Offload {
        checksum,
        gso: None,
    };
    (bytes, offload)
}

/// D-41.
#[test]
fn device_is_reset_and_gets_its_rings() {
    let (nic, device, _) = start(model()).unwrap();
    assert_eq!(device.0.resets.get(), 1);
    let low = |register| u64::from(device.raw(register)) + BASE;
    let end = BASE + (BUFFERS * BUFFER) as u64;
    assert_eq!(
        low(IntelRegister::ReceiveBase),
        end,
        "the rings follow the pool"
    );
    assert_eq!(device.raw(IntelRegister::ReceiveBaseHigh), 1);
    for register in [IntelRegister::ReceiveLength, IntelRegister::TransmitLength] {
        assert_eq!(device.raw(register), u32::from(ENTRIES) * 16);
    }
    // Accepts all frames of up to 1522 bytes, into buffers of 2048 bytes.
    assert_eq!(device.raw(IntelRegister::Receive), 0x0400_801a);
    assert_eq!(
        device.raw(IntelRegister::Control) & 1 << 6,
        1 << 6,
        "link up"
    );
    assert_eq!(device.raw(IntelRegister::Vectors), 8);
    assert!(nic.caps().checksum && !nic.caps().tso);
}

/// D-41.
#[test]
fn unsuitable_device_is_rejected() {
    let why = |model| start(model).map(drop).unwrap_err();
    let endless = Model {
        completes: false,
        ..model()
    };
    assert_eq!(why(endless), StartupError::Reset);
    for (register, name) in [
        (IntelRegister::ReceiveLength, QueueName::Receive(0)),
        (IntelRegister::TransmitBase, QueueName::Transmit),
    ] {
        let stuck = Model {
            stuck: Some(register),
            ..model()
        };
        assert_eq!(why(stuck), StartupError::Queue(name));
    }
    let removed = Model {
        stuck: Some(IntelRegister::Control),
        registers: RefCell::new(HashMap::from([(IntelRegister::Control, u32::MAX)])),
        ..model()
    };
    assert_eq!(why(removed), StartupError::Registers);
}

/// D-41: no step of a reset blocks, and each has a limit of 100 ms. A device whose memory requests
/// never complete is reset anyway.
#[test]
fn reset_is_polled() {
    const MS: u64 = 1_000_000;
    let open = |completes, has_requests| {
        Device(Rc::new(Model {
            completes,
            has_requests,
            ..model()
        }))
    };
    let reset = |device: &Device, progress: &mut IntelReset, now_ns| {
        Intel82574::reset(device, progress, now_ns)
    };
    let mut progress = IntelReset::default();
    let device = open(false, true);
    assert_eq!(reset(&device, &mut progress, 5), Ok(false));
    assert_eq!(reset(&device, &mut progress, 100 * MS), Ok(false));
    assert_eq!(device.0.resets.get(), 0, "its memory requests are pending");
    assert_eq!(reset(&device, &mut progress, 100 * MS + 5), Ok(false));
    assert_eq!(device.0.resets.get(), 1);
    assert_eq!(reset(&device, &mut progress, 101 * MS), Ok(false));
    assert_eq!(reset(&device, &mut progress, 200 * MS), Ok(false));
    let failed = reset(&device, &mut progress, 201 * MS);
    assert_eq!(failed, Err(StartupError::Reset));
    let (mut progress, device) = (IntelReset::default(), open(true, false));
    assert_eq!(
        reset(&device, &mut progress, 5),
        Ok(false),
        "the driver waits after the reset"
    );
    assert_eq!(reset(&device, &mut progress, 10_005), Ok(true));
    assert_eq!((progress, device.0.resets.get()), (IntelReset::Start, 1));
}

#[test]
fn frames_pass_both_ways_as_rings_wrap() {
    let (mut nic, device, mut pool) = start(model()).unwrap();
    poll(&mut nic, &mut pool);
    for round in 1..=40 {
        let bytes = frame(60 + usize::from(round) * 30, round);
        device.receive(0, &bytes);
        let mut got = poll(&mut nic, &mut pool);
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].to_vec().unwrap(), bytes);
        let report = nic.tx(0, &got, &[0]);
        assert_eq!((report.sent, report.bytes), (1, bytes.len() as u64));
        assert_eq!(device.send(), Some(bytes));
        got[0].recycle(&mut pool);
    }
    poll(&mut nic, &mut pool);
    assert_eq!(nic.close_reason(), None);
    let posted = counter(&nic, "rx_posted");
    assert_eq!(posted, u64::from(ENTRIES) - 1, "one descriptor stays free");
    assert_eq!(posted as usize + pool.available(), BUFFERS);
}

/// D-42.
#[test]
fn only_verified_checksums_are_reported_as_valid() {
    let (mut nic, device, mut pool) = start(model()).unwrap();
    for (status, expected) in [
        (0, Checksum::Unknown),
        (CHECKED, Checksum::Valid),
        (CHECKED | WRONG, Checksum::Unknown),
        (CHECKED | 1 << 2, Checksum::Unknown),
        (1 << 6, Checksum::Unknown),
    ] {
        poll(&mut nic, &mut pool);
        device.receive(status, &frame(64, 3));
        let mut got = poll(&mut nic, &mut pool);
        assert_eq!(got[0].offload.checksum, expected, "{status:#x}");
        got[0].recycle(&mut pool);
    }
}

/// Sends a frame. Returns its bytes on the wire, and the number of descriptors that it used.
fn sent(bytes: &[u8], offload: Offload) -> (Vec<u8>, u32) {
    let (mut nic, device, mut pool) = start(model()).unwrap();
    poll(&mut nic, &mut pool);
    device.receive(0, bytes);
    let mut got = poll(&mut nic, &mut pool);
    got[0].offload = offload;
    assert_eq!(nic.tx(0, &got, &[0]).sent, 1);
    let sent = device.send().unwrap();
    got[0].recycle(&mut pool);
    (sent, device.raw(IntelRegister::TransmitHead))
}

/// D-42. The driver leaves only those checksums to the device that every device supports.
#[test]
fn checksums_are_completed() {
    for (gap, is_tagged, descriptors) in [(0, false, 2), (0, true, 2), (4, false, 1)] {
        let (bytes, offload) = packet(gap, is_tagged);
        let Checksum::Blank { start, offset } = offload.checksum else {
            unreachable!();
        };
        let mut expected = bytes.clone();
        assert!(checksum::complete(&mut expected, (start, offset)));
        assert_ne!(bytes, expected);
        assert_eq!(sent(&bytes, offload), (expected, descriptors), "{gap}");
    }
    let (bytes, _) = packet(0, false);
    for checksum in [Checksum::Valid, Checksum::Unknown] {
        let offload = Offload {
            checksum,
            gso: None,
        };
        assert_eq!(sent(&bytes, offload), (bytes.clone(), 1));
    }
}

#[test]
fn full_ring_refuses_frames_and_recovers() {
    let (mut nic, device, mut pool) = start(model()).unwrap();
    poll(&mut nic, &mut pool);
    device.receive(0, &packet(0, false).0);
    let mut got = poll(&mut nic, &mut pool);
    let many = vec![0; usize::from(ENTRIES) + 3];
    let report = nic.tx(0, &got, &many);
    assert_eq!((report.sent, report.full), (u32::from(ENTRIES) - 1, 4));
    while device.send().is_some() {}
    got[0].offload = BLANK;
    let report = nic.tx(0, &got, &many);
    assert_eq!(report.sent, 3, "seven descriptors are three pairs");
    assert_eq!(report.full, u32::from(ENTRIES));
    while device.send().is_some() {}
    assert_eq!(nic.tx(0, &got, &[0]).sent, 1);
}

/// D-41: the device can pad only frames of at least 17 bytes.
#[test]
fn shortest_frames_are_refused() {
    let (mut nic, device, mut pool) = start(model()).unwrap();
    for (len, sent) in [(16, 0), (17, 1)] {
        poll(&mut nic, &mut pool);
        device.receive(0, &frame(len, 3));
        let got = poll(&mut nic, &mut pool);
        let report = nic.tx(0, &got, &[0]);
        assert_eq!((report.sent, report.refused), (sent, 1 - sent));
    }
}

/// D-28.
#[test]
fn frame_longer_than_its_buffer_closes_the_nic() {
    for len in [2049, 0xffff] {
        let (mut nic, device, mut pool) = start(model()).unwrap();
        poll(&mut nic, &mut pool);
        device.receive(0, &frame(64, 3));
        device.complete(DONE | LAST, len);
        let mut got = poll(&mut nic, &mut pool);
        assert_eq!(got.len(), 1, "the frame before it is received");
        got[0].recycle(&mut pool);
        let why = nic.close_reason().expect("the NIC is open").to_string();
        let expected = format!("receive queue 0, index 1: {len} bytes where 2048 fit");
        assert_eq!(why, expected);
        assert_eq!(device.0.resets.get(), 2, "the device was not reset");
        assert_eq!(counter(&nic, "closed"), 1);
        assert_eq!(nic.next_due(7), None);
        assert_eq!(nic.tx(0, &[Frame::empty()], &[0]).refused, 1);
        assert_complete(&mut pool);
    }
}

/// D-29.
#[test]
fn damaged_partial_and_impossible_frames_are_dropped() {
    let (mut nic, device, mut pool) = start(model()).unwrap();
    poll(&mut nic, &mut pool);
    let ends = [0, 13, MTU as u64 + 19, 2048].map(|len| (DONE | LAST, len));
    let damaged = [24, 25, 26, 28, 31].map(|bit| (DONE | LAST | 1 << bit, 64));
    // A frame spans three buffers.
    let parts = [(DONE, 2048), (DONE, 2048), (DONE | LAST, 64)];
    let all: Vec<_> = [&ends[..], &damaged, &parts].concat();
    for (status, len) in &all {
        device.complete(*status, *len);
        assert!(poll(&mut nic, &mut pool).is_empty(), "{status:#x} {len}");
    }
    assert_eq!(counter(&nic, "rx_malformed"), all.len() as u64);
    device.receive(0, &frame(64, 3));
    assert_eq!(poll(&mut nic, &mut pool).len(), 1);
    assert_eq!(nic.close_reason(), None);
    let posted = counter(&nic, "rx_posted") as usize;
    assert_eq!(posted + pool.available(), BUFFERS - 1);
}

/// D-28: the driver accepts a completion only of the oldest posted buffer.
#[test]
fn completions_of_other_descriptors_have_no_effect() {
    let (mut nic, device, mut pool) = start(model()).unwrap();
    poll(&mut nic, &mut pool);
    let free = u32::from(ENTRIES) - 1;
    for number in [1, 5, free] {
        let descriptor = device.receive_descriptor(number);
        descriptor.store_u64(8, DONE | LAST | 64 << 32).unwrap();
    }
    assert!(
        poll(&mut nic, &mut pool).is_empty(),
        "the first descriptor is not completed"
    );
    let ring = [IntelRegister::TransmitBase, IntelRegister::TransmitBaseHigh];
    device.descriptor(ring, 0).store_u64(8, u64::MAX).unwrap();
    assert_eq!(nic.tx(0, &[], &[]).sent, 0);
    assert_eq!(nic.close_reason(), None);
    nic.release(&mut pool);
    assert_complete(&mut pool);
}

/// D-28.
#[test]
fn failed_device_closes_the_nic_and_can_be_restarted() {
    for (value, reason) in [
        (u32::MAX, CloseReason::Registers),
        (0, CloseReason::Stopped),
    ] {
        let (mut nic, device, mut pool) = start(model()).unwrap();
        poll(&mut nic, &mut pool);
        device.put(IntelRegister::Missed, 3);
        nic.check();
        assert_eq!((nic.close_reason(), counter(&nic, "missed")), (None, 3));
        device.put(IntelRegister::Receive, value);
        nic.check();
        assert_eq!(nic.close_reason(), Some(reason));
        assert_eq!(nic.next_due(7), Some(7), "the buffers wait for a poll");
        poll(&mut nic, &mut pool);
        assert_eq!(pool.available(), BUFFERS);
        super::reset::<Intel82574<_>>(&device).unwrap();
        nic.restart().unwrap();
        assert_eq!((nic.close_reason(), counter(&nic, "missed")), (None, 3));
        poll(&mut nic, &mut pool);
        device.receive(0, &frame(64, 3));
        assert_eq!(poll(&mut nic, &mut pool).len(), 1);
    }
}

/// D-41.
#[test]
fn interrupts_are_enabled_when_polling_stops() {
    let (mut nic, device, mut pool) = start(model()).unwrap();
    assert_eq!(nic.next_due(7), Some(7), "nothing is posted yet");
    poll(&mut nic, &mut pool);
    assert_eq!(nic.next_due(7), None);
    assert_eq!(device.raw(IntelRegister::CausesEnable), 1 << 20);
    // An interrupt message disables its cause.
    device.put(IntelRegister::CausesEnable, 0);
    device.receive(0, &frame(64, 3));
    let mut frames = Vec::new();
    nic.rx(0, 1, &mut pool, &mut frames);
    assert_eq!(device.raw(IntelRegister::CausesEnable), 0);
    assert_eq!(nic.next_due(7), Some(7), "there may be more");
    nic.rx(0, 1, &mut pool, &mut frames);
    assert_eq!(device.raw(IntelRegister::CausesEnable), 1 << 20);
    assert_eq!(nic.next_due(7), None);
}

proptest! {
    /// D-28: the device completes descriptors with arbitrary status and length, also descriptors
    /// that are not next.
    #[test]
    fn hostile_device_loses_and_duplicates_no_buffer(
        words in prop::collection::vec((any::<u32>(), 0u64..2100, any::<bool>(), 0u32..8), 1..40)
    ) {
        let (mut nic, device, mut pool) = start(model()).unwrap();
        poll(&mut nic, &mut pool);
        for (status, len, is_honest, number) in words {
            let word = u64::from(status) | len << 32;
            let descriptor = match is_honest {
                true => device.next().map(|(descriptor, _)| descriptor),
                false => None,
            };
            let descriptor = descriptor.unwrap_or_else(|| device.receive_descriptor(number));
            descriptor.store_u64(8, word).unwrap();
            for mut frame in poll(&mut nic, &mut pool) {
                frame.recycle(&mut pool);
            }
            if nic.close_reason().is_some() {
                break;
            }
        }
        nic.release(&mut pool);
        assert_complete(&mut pool);
    }
}
