//! Tests the driver of virtio-net devices.

use super::{BLANK, BUFFER, BUFFERS, ENTRIES, MTU, assert_complete, counter, frame, poll, setup};
use nic::dma::QueueName;
use nic::dma::pci::setup::queue_bytes;
use nic::dma::pci::virtio::registers::{Notify, Register};
use nic::dma::pci::{AnyPciNic, CloseReason, PciNic, Registers, StartupError, VirtioNet};
use nic::{Checksum, Nic, Pool};
use proptest::prelude::*;
use shmem::{Area, Fault, Span};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Feature bits: VIRTIO_F_VERSION_1 and VIRTIO_F_ACCESS_PLATFORM; checksum offload in both
/// directions.
const MODERN: u64 = 3 << 32;
const CHECKSUMS: u64 = 3;

/// A model of the device: its registers, and the memory that it may access.
#[derive(Debug)]
struct Model {
    memory: Area,
    features: u64,
    keeps_features: bool,
    queue_size: u32,
    /// Highest number of a notification address.
    notify_max: u16,
    /// Register values by offset and queue.
    registers: RefCell<HashMap<(usize, u32), u32>>,
    notified: RefCell<Vec<(u16, u16)>>,
    /// Available and used indices of each queue.
    indices: RefCell<[(u16, u16); 2]>,
}

#[derive(Clone, Debug)]
struct Device(Rc<Model>);

impl Model {
    fn raw(&self, register: Register) -> u32 {
        let all = self.registers.borrow();
        all.get(&(register.place().0, 0)).copied().unwrap_or(0)
    }

    fn of_queue(&self, register: Register, queue: u32) -> u32 {
        let all = self.registers.borrow();
        all.get(&(register.place().0, queue)).copied().unwrap_or(0)
    }

    fn is_per_queue(register: Register) -> bool {
        register.place().0 >= Register::QueueSize.place().0
    }
}

impl Registers<Register> for Device {
    fn get(&self, register: Register) -> Result<u32, Fault> {
        let model = &*self.0;
        let queue = model.raw(Register::QueueSelect);
        Ok(match register {
            Register::DeviceFeature => match model.raw(Register::DeviceFeatureSelect) {
                0 => model.features as u32,
                1 => (model.features >> 32) as u32,
                _ => 0,
            },
            Register::QueueSize => model.queue_size,
            Register::QueueNotifyOffset => queue + 5,
            register if Model::is_per_queue(register) => model.of_queue(register, queue),
            register => model.raw(register),
        })
    }

    fn set(&self, register: Register, mut value: u32) -> Result<(), Fault> {
        let model = &*self.0;
        let mut place = 0;
        if Model::is_per_queue(register) {
            place = model.raw(Register::QueueSelect);
        } else if register == Register::Status {
            match value {
                0 => *model.indices.borrow_mut() = [(0, 0); 2],
                _ if !model.keeps_features => value &= !8,
                _ => {}
            }
        }
        let key = (register.place().0, place);
        model.registers.borrow_mut().insert(key, value);
        Ok(())
    }
}

impl Notify for Device {
    fn can_notify(&self, offset: u16) -> bool {
        offset <= self.0.notify_max
    }

    fn notify(&self, queue: u16, offset: u16) -> Result<(), Fault> {
        self.0.notified.borrow_mut().push((queue, offset));
        Ok(())
    }
}

impl Device {
    fn span(&self, address: u64, len: usize) -> Span {
        super::device_span(self.0.memory, address, len)
    }

    fn ring(&self, low: Register, high: Register, queue: u32, len: usize) -> Span {
        let half = |register| u64::from(self.0.of_queue(register, queue));
        self.span(half(low) | half(high) << 32, len)
    }

    /// Takes the next posted buffer of a queue, and returns its id, memory and flags.
    fn next(&self, queue: u32) -> Option<(u32, Span, u16)> {
        let size = self.0.of_queue(Register::QueueSize, queue);
        let available = self.ring(
            Register::QueueAvailable,
            Register::QueueAvailableHigh,
            queue,
            4 + 2 * size as usize,
        );
        let mut indices = self.0.indices.borrow_mut();
        let (taken, _) = &mut indices[queue as usize];
        if available.load_u16(2).unwrap() == *taken {
            return None;
        }
        let slot = usize::from(*taken) % size as usize;
        *taken = taken.wrapping_add(1);
        let id = available.load_u16(4 + 2 * slot).unwrap();
        let descriptors = self.ring(
            Register::QueueDescriptors,
            Register::QueueDescriptorsHigh,
            queue,
            16 * size as usize,
        );
        let descriptor = descriptors.skip(16 * usize::from(id));
        let address = descriptor.load_u64(0).unwrap();
        let len = descriptor.load_u32(8).unwrap();
        let flags = descriptor.load_u16(12).unwrap();
        Some((id.into(), self.span(address, len as usize), flags))
    }

    /// Returns a buffer to the driver.
    fn complete(&self, queue: u32, id: u32, len: u32) {
        let size = self.0.of_queue(Register::QueueSize, queue);
        let used = self.used(queue);
        let mut indices = self.0.indices.borrow_mut();
        let (_, index) = &mut indices[queue as usize];
        let at = 4 + 8 * (usize::from(*index) % size as usize);
        used.store_u32(at, id).unwrap();
        used.store_u32(at + 4, len).unwrap();
        *index = index.wrapping_add(1);
        used.store_u16(2, *index).unwrap();
    }

    fn used(&self, queue: u32) -> Span {
        let size = self.0.of_queue(Register::QueueSize, queue) as usize;
        self.ring(
            Register::QueueUsed,
            Register::QueueUsedHigh,
            queue,
            4 + 8 * size,
        )
    }

    /// Stores a received frame in the next posted buffer.
    fn receive(&self, header: [u8; 12], frame: &[u8]) {
        let (id, span, flags) = self.next(0).expect("no buffer is posted");
        assert_eq!(flags, 2, "the device may write to it");
        span.write(&[&header[..], frame].concat()).unwrap();
        self.complete(0, id, (header.len() + frame.len()) as u32);
    }

    /// Returns the header and bytes of the next frame that the driver has posted, and completes it.
    fn send(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (id, span, flags) = self.next(1)?;
        assert_eq!(flags, 0, "the device only reads it");
        let mut bytes = vec![0; span.len()];
        span.read(&mut bytes).unwrap();
        self.complete(1, id, 0);
        let frame = bytes.split_off(12);
        Some((bytes, frame))
    }
}

fn device(features: u64) -> Model {
    Model {
        memory: super::memory(),
        features,
        keeps_features: true,
        queue_size: 256,
        notify_max: 6,
        registers: RefCell::default(),
        notified: RefCell::default(),
        indices: RefCell::default(),
    }
}

fn start(model: Model) -> Result<(PciNic<VirtioNet<Device>>, Device, Pool), StartupError> {
    let device = Device(Rc::new(model));
    let (nic, pool) = super::start(device.clone(), device.0.memory)?;
    Ok((nic, device, pool))
}

/// D-27.
#[test]
fn features_and_queues_are_negotiated() {
    let (nic, device, _) = start(device(MODERN | CHECKSUMS | 1 << 5 | 1 << 15)).unwrap();
    let model = &device.0;
    assert_eq!(model.raw(Register::Status), 15);
    assert_eq!(
        model.raw(Register::DriverFeature),
        3,
        "the driver writes the upper half last"
    );
    for queue in [0, 1] {
        assert_eq!(model.of_queue(Register::QueueSize, queue), ENTRIES.into());
        assert_eq!(model.of_queue(Register::QueueEnable, queue), 1);
    }
    assert_eq!(model.of_queue(Register::QueueVector, 0), 0);
    assert_eq!(model.of_queue(Register::QueueVector, 1), 0xffff);
    assert!(nic.caps().checksum && !nic.caps().tso);
    let bytes = queue_bytes(ENTRIES);
    for (queue, at) in [(0, 0), (1, bytes)] {
        let low = model.of_queue(Register::QueueDescriptors, queue) as usize;
        assert_eq!(low, BUFFERS * BUFFER + at, "the queues follow the pool");
        assert_eq!(model.of_queue(Register::QueueDescriptorsHigh, queue), 1);
    }
}

/// D-30. The queues begin at a page after the pool, which may leave a gap.
#[test]
fn queues_may_begin_after_a_gap() {
    let device = Device(Rc::new(device(MODERN)));
    let memory = device.0.memory;
    let pool = memory.part(0, 6 * abi::PAGE).unwrap();
    let rest = memory.part(7 * abi::PAGE, memory.len() - 7 * abi::PAGE);
    let rest = rest.unwrap();
    super::reset::<VirtioNet<_>>(&device).unwrap();
    PciNic::<VirtioNet<_>>::start(setup(), device.clone(), pool, rest).unwrap();
    let low = device.0.of_queue(Register::QueueDescriptors, 0) as usize;
    assert_eq!(low, 7 * abi::PAGE);
}

/// D-27.
#[test]
fn unsuitable_device_is_rejected() {
    let why = |model| start(model).map(drop).unwrap_err();
    let feature = StartupError::Feature;
    assert_eq!(why(device(2 << 32)), feature("VIRTIO_F_VERSION_1"));
    assert_eq!(why(device(1 << 32)), feature("VIRTIO_F_ACCESS_PLATFORM"));
    let rejecting = Model {
        keeps_features: false,
        ..device(MODERN)
    };
    assert_eq!(why(rejecting), StartupError::Rejects);
    for queue_size in [0, 3] {
        let odd = Model {
            queue_size,
            ..device(MODERN)
        };
        assert!(matches!(why(odd), StartupError::Queue(_)), "{queue_size}");
    }
    let far = Model {
        notify_max: 5,
        ..device(MODERN)
    };
    assert_eq!(why(far), StartupError::Queue(QueueName::Transmit));
}

#[test]
fn frames_pass_both_ways_as_rings_wrap() {
    let (mut nic, device, mut pool) = start(device(MODERN)).unwrap();
    poll(&mut nic, &mut pool);
    assert_eq!(device.0.notified.borrow()[0], (0, 5));
    for round in 1..=40 {
        let bytes = frame(60 + usize::from(round) * 30, round);
        device.receive([0; 12], &bytes);
        let mut got = poll(&mut nic, &mut pool);
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].to_vec().unwrap(), bytes);
        let report = nic.tx(0, &got, &[0]);
        assert_eq!((report.sent, report.bytes), (1, bytes.len() as u64));
        let (header, sent) = device.send().unwrap();
        assert_eq!((header, sent), (vec![0; 12], bytes));
        got[0].recycle(&mut pool);
    }
    assert_eq!(nic.close_reason(), None);
    let posted = counter(&nic, "rx_posted") as usize;
    assert_eq!(posted + pool.available(), BUFFERS);
}

#[test]
fn checksum_offload_is_used_only_if_negotiated() {
    let mut header = [0; 12];
    header[..10].copy_from_slice(&nic::virtio::encode(BLANK, 66));
    for (features, received) in [(MODERN | CHECKSUMS, 1), (MODERN, 0)] {
        let (mut nic, device, mut pool) = start(device(features)).unwrap();
        poll(&mut nic, &mut pool);
        device.receive(header, &frame(100, 7));
        let mut got = poll(&mut nic, &mut pool);
        assert_eq!(got.len(), received);
        assert_eq!(counter(&nic, "rx_malformed"), 1 - received as u64);
        let Some(frame) = got.first_mut() else {
            continue;
        };
        assert_eq!(frame.offload, BLANK);
        assert_eq!(nic.tx(0, &got, &[0]).sent, 1);
        let (sent, _) = device.send().unwrap();
        assert_eq!((sent[0], &sent[6..10]), (1, &header[6..10]));
        // The header of a sent frame does not claim that a checksum was verified.
        got[0].offload.checksum = Checksum::Valid;
        nic.tx(0, &got, &[0]);
        assert_eq!(device.send().unwrap().0, [0; 12]);
    }
}

#[test]
fn full_queue_refuses_frames_and_recovers() {
    let (mut nic, device, mut pool) = start(device(MODERN)).unwrap();
    poll(&mut nic, &mut pool);
    device.receive([0; 12], &frame(64, 3));
    let got = poll(&mut nic, &mut pool);
    let many = vec![0; usize::from(ENTRIES) + 3];
    let report = nic.tx(0, &got, &many);
    assert_eq!((report.sent, report.full), (ENTRIES.into(), 3));
    while device.send().is_some() {}
    assert_eq!(nic.tx(0, &got, &[0]).sent, 1);
}

/// D-28.
#[test]
fn invalid_returns_close_the_nic_and_lose_no_buffer() {
    type Attack = fn(&Device);
    let attacks: [(&str, Attack); 6] = [
        ("completed but not posted", |device| {
            device.complete(0, 99, 64)
        }),
        ("completed but not posted", |device| {
            device.complete(0, u32::MAX, 64);
        }),
        ("2049 bytes where 2048 fit", |device| {
            let (id, ..) = device.next(0).unwrap();
            device.complete(0, id, 2049);
        }),
        ("completed but not posted", |device| {
            let (id, ..) = device.next(0).unwrap();
            device.complete(0, id, 100);
            device.complete(0, id, 100);
        }),
        ("completed but not posted", |device| {
            device.used(0).store_u16(2, ENTRIES + 1).unwrap();
        }),
        ("completed but not posted", |device| {
            device.used(0).store_u16(2, u16::MAX).unwrap();
        }),
    ];
    for (number, (expected, attack)) in attacks.into_iter().enumerate() {
        let (mut nic, device, mut pool) = start(device(MODERN)).unwrap();
        poll(&mut nic, &mut pool);
        attack(&device);
        for mut frame in poll(&mut nic, &mut pool) {
            frame.recycle(&mut pool);
        }
        let why = nic.close_reason().expect("the NIC is open").to_string();
        assert!(why.contains(expected), "attack {number}: {why}");
        assert_eq!(
            device.0.raw(Register::Status),
            0,
            "the device was not reset"
        );
        assert_eq!(pool.available(), BUFFERS, "attack {number}");
        assert_eq!(counter(&nic, "closed"), 1);
        assert_eq!(nic.next_due(7), None);
    }
}

/// D-28.
#[test]
fn invalid_return_of_a_sent_frame_closes_the_nic() {
    let (mut nic, device, mut pool) = start(device(MODERN)).unwrap();
    poll(&mut nic, &mut pool);
    device.receive([0; 12], &frame(64, 3));
    let mut got = poll(&mut nic, &mut pool);
    device.complete(1, 0, 0);
    assert_eq!(nic.tx(0, &got, &[0]).refused, 1);
    got[0].recycle(&mut pool);
    assert_eq!(
        nic.next_due(7),
        Some(7),
        "the buffers wait for the next poll"
    );
    poll(&mut nic, &mut pool);
    assert_eq!(pool.available(), BUFFERS);
    assert_eq!(nic.next_due(7), None);
}

/// D-28: the cases are a device that needs a reset, a removed device (registers read as all ones),
/// and a device that has reset itself.
#[test]
fn failed_device_closes_the_nic_and_can_be_restarted() {
    for (status, reason) in [
        (15 | 64, CloseReason::NeedsReset),
        (0xff, CloseReason::NeedsReset),
        (0, CloseReason::Stopped),
    ] {
        let (mut nic, device, mut pool) = start(device(MODERN)).unwrap();
        assert_eq!(device.0.raw(Register::ConfigVector), 0);
        poll(&mut nic, &mut pool);
        device.receive([0; 12], &frame(11, 3));
        poll(&mut nic, &mut pool);
        nic.check();
        assert_eq!(nic.close_reason(), None);
        device.set(Register::Status, status).unwrap();
        nic.check();
        assert_eq!(nic.close_reason(), Some(reason));
        assert_eq!(nic.next_due(7), Some(7), "the buffers wait for a poll");
        poll(&mut nic, &mut pool);
        assert_eq!(pool.available(), BUFFERS);
        super::reset::<VirtioNet<_>>(&device).unwrap();
        nic.restart().unwrap();
        assert_eq!(
            (nic.close_reason(), counter(&nic, "rx_malformed")),
            (None, 1)
        );
        poll(&mut nic, &mut pool);
        device.receive([0; 12], &frame(64, 3));
        assert_eq!(poll(&mut nic, &mut pool).len(), 1);
    }
}

/// D-29.
#[test]
fn frames_of_impossible_lengths_are_dropped() {
    let (mut nic, device, mut pool) = start(device(MODERN)).unwrap();
    poll(&mut nic, &mut pool);
    for len in [0, 11, 12, 25, 12 + MTU as u32 + 19, 2048] {
        let (id, ..) = device.next(0).unwrap();
        device.complete(0, id, len);
        assert!(poll(&mut nic, &mut pool).is_empty(), "{len}");
    }
    assert_eq!(counter(&nic, "rx_malformed"), 6);
    assert_eq!(nic.close_reason(), None);
    let posted = counter(&nic, "rx_posted") as usize;
    assert_eq!(posted + pool.available(), BUFFERS);
}

#[test]
fn interrupts_are_off_while_the_driver_polls() {
    let (mut nic, device, mut pool) = start(device(MODERN)).unwrap();
    assert_eq!(nic.next_due(7), Some(7), "nothing is posted yet");
    let flags = |device: &Device, queue| {
        let available = device.ring(
            Register::QueueAvailable,
            Register::QueueAvailableHigh,
            queue,
            4,
        );
        available.load_u16(0).unwrap()
    };
    poll(&mut nic, &mut pool);
    assert_eq!((flags(&device, 0), flags(&device, 1)), (0, 1));
    assert_eq!(nic.next_due(7), None);
    device.receive([0; 12], &frame(64, 3));
    let mut frames = Vec::new();
    nic.rx(0, 1, &mut pool, &mut frames);
    assert_eq!(flags(&device, 0), 1);
    assert_eq!(nic.next_due(7), Some(7), "there may be more");
    frames[0].recycle(&mut pool);
}

proptest! {
    /// D-28: the device returns arbitrary descriptors with arbitrary lengths.
    #[test]
    fn hostile_device_loses_and_duplicates_no_buffer(
        returns in prop::collection::vec((0u32..10, 0u32..2100, any::<bool>()), 1..40)
    ) {
        let (mut nic, device, mut pool) = start(device(MODERN)).unwrap();
        poll(&mut nic, &mut pool);
        for (id, len, is_honest) in returns {
            let posted = is_honest.then(|| device.next(0)).flatten();
            let id = posted.map_or(id, |(id, ..)| id);
            device.complete(0, id, len);
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
