//! Hostile PCI devices.

use super::common::{BUFFER, MTU, Supply, WIRE_MAX, check, offload, scribble};
use crate::input::Input;
use abi::PAGE;
use nic::dma::IoAddr;
use nic::dma::pci::intel::registers::IntelRegister;
use nic::dma::pci::setup::queue_bytes;
use nic::dma::pci::virtio::registers::{Notify, Register};
use nic::dma::pci::{AnyPciNic, Intel82574, PciDevice, PciNic, PciSetup, Registers, VirtioNet};
use nic::{Frame, Nic as _};
use shmem::{Area, Fault, Span};
use std::cell::RefCell;
use std::rc::Rc;

const ENTRIES: u16 = 16;
const BUFFERS: usize = 32;
const SETUP: PciSetup = PciSetup {
    entries: ENTRIES,
    mtu: MTU,
    base: IoAddr::from_bits(1 << 32),
};
/// Bytes behind the start of a register space.
const SPACE: usize = 0x6000;
/// A virtio device's features: both checksums, version 1, access through the IOMMU.
const FEATURES: [u32; 2] = [3, 3];

/// The registers of a device, in the order of their places.
#[derive(Clone, Debug)]
struct Model(Rc<RefCell<Vec<u32>>>);

impl Model {
    fn new() -> Self {
        Self(Rc::new(RefCell::new(vec![0; SPACE / 2])))
    }

    fn load(&self, place: usize) -> u32 {
        self.0.borrow().get(place / 2).copied().unwrap_or(0)
    }

    fn store(&self, place: usize, value: u32) {
        if let Some(word) = self.0.borrow_mut().get_mut(place / 2) {
            *word = value;
        }
    }
}

impl Registers<IntelRegister> for Model {
    fn get(&self, register: IntelRegister) -> Result<u32, Fault> {
        Ok(match register {
            IntelRegister::Nvm => 1 << 9,
            _ => self.load(register as usize),
        })
    }

    fn set(&self, register: IntelRegister, value: u32) -> Result<(), Fault> {
        let reset = 1 << 26;
        let value = match register {
            IntelRegister::Control => value & !reset,
            _ => value,
        };
        self.store(register as usize, value);
        Ok(())
    }
}

impl Registers<Register> for Model {
    fn get(&self, register: Register) -> Result<u32, Fault> {
        let half = self.load(Register::DeviceFeatureSelect.place().0);
        Ok(match register {
            Register::DeviceFeature => FEATURES.get(half as usize).copied().unwrap_or(0),
            Register::QueueSize => 64,
            _ => self.load(register.place().0),
        })
    }

    fn set(&self, register: Register, value: u32) -> Result<(), Fault> {
        self.store(register.place().0, value);
        Ok(())
    }
}

impl Notify for Model {
    fn can_notify(&self, _: u16) -> bool {
        true
    }

    fn notify(&self, _: u16, _: u16) -> Result<(), Fault> {
        Ok(())
    }
}

/// Completes a slot of a queue in the format of a kind of device. The slot and the words may be
/// arbitrary.
type Complete = fn(&mut Input<'_>, queue: usize, slot: usize, memory: Span);

pub(super) fn intel(input: &mut Input<'_>) {
    let complete: Complete = |input, queue, slot, memory| {
        let len = match input.below(4) {
            0 => u64::from(input.u16()),
            _ => u64::from(input.u8()) * 8,
        };
        // The status is mostly that of a whole, completed frame.
        let status = match input.below(4) {
            0 => u64::from(input.u32()),
            1 => 1 | u64::from(input.u8()),
            _ => 3 | 1 << 5,
        };
        let word = if queue == 0 {
            status | len << 32
        } else {
            status << 32
        };
        memory.store_u64(slot * 16 + 8, word).expect("own memory");
    };
    run::<Intel82574<Model>>(input, complete, IntelRegister::Receive as usize);
}

pub(super) fn virtio(input: &mut Input<'_>) {
    let complete: Complete = |input, _, slot, memory| {
        let used = (usize::from(ENTRIES) * 18 + 4).next_multiple_of(PAGE);
        let id = input.near(slot as u32);
        let len = match input.below(4) {
            0 => input.near(BUFFER as u32),
            _ => u32::from(input.u8()) * 8,
        };
        let at = used + 4 + slot * 8;
        memory.store_u32(at, id).expect("own memory");
        memory.store_u32(at + 4, len).expect("own memory");
        let index = memory.load_u32(used).expect("own memory") >> 16;
        let step = match input.below(16) {
            0 => input.near(index),
            _ => index + 1,
        };
        memory.store_u32(used, step << 16).expect("own memory");
    };
    run::<VirtioNet<Model>>(input, complete, Register::Status.place().0);
}

/// Runs the driver of a PCI device. Checks that no buffer is lost or in two places and that no
/// frame exceeds the MTU, whatever the device writes.
fn run<D: PciDevice<Registers = Model>>(input: &mut Input<'_>, complete: Complete, status: usize) {
    thread_local!(static MEMORY: Area = {
        let bytes = BUFFERS * BUFFER + SETUP.bytes();
        Area::anonymous(bytes.next_multiple_of(PAGE)).expect("memory")
    });
    let memory = MEMORY.with(|area| *area);
    memory.span().fill(0).expect("own memory");
    let pool = memory.part(0, BUFFERS * BUFFER).expect("the pool");
    let rest = memory.part(pool.len(), memory.len() - pool.len());
    let rest = rest.expect("the queues");
    let model = Model::new();
    reset::<D>(&model);
    let mut nic = PciNic::<D>::start(SETUP, model.clone(), pool, rest).expect("it starts");
    let mut supply = Supply::new(pool);
    let mut frames: Vec<Frame> = Vec::new();
    let mut next = [0usize; 2];
    while !input.is_empty() {
        match input.below(8) {
            0 | 1 => {
                let queue = input.below(2);
                let at = queue * queue_bytes(ENTRIES);
                let of_queue = rest.at(at, queue_bytes(ENTRIES)).expect("a queue");
                let number = if queue == 0 {
                    &mut next[0]
                } else {
                    &mut next[1]
                };
                let slot = match input.below(8) {
                    0 => input.below(ENTRIES.into()),
                    _ => *number % usize::from(ENTRIES),
                };
                *number += 1;
                complete(input, queue, slot, of_queue);
            }
            2 | 3 => {
                let (before, budget) = (frames.len(), input.below(20));
                assert!(nic.rx(0, budget, &mut supply, &mut frames) <= budget);
                check(frames.get(before..).unwrap_or(&[]), WIRE_MAX);
            }
            4 => send(input, &mut nic, &mut frames),
            5 => frames
                .drain(..)
                .for_each(|mut frame| frame.recycle(&mut supply)),
            6 => scribble(input, memory.span()),
            _ if input.below(4) == 0 => {
                model.store(status, input.near(0));
                nic.check();
                nic.rx(0, 0, &mut supply, &mut frames);
                if nic.close_reason().is_some() {
                    reset::<D>(&model);
                    nic.restart().expect("it starts");
                    next = [0; 2];
                }
            }
            _ => nic.check(),
        }
        let counters = nic.counters();
        let posted = counters.iter().find(|(name, _)| *name == "rx_posted");
        let posted = posted.map_or(0, |(_, count)| *count as usize);
        let held: usize = frames.iter().map(|frame| frame.pieces.len()).sum();
        assert_eq!(supply.used.len(), posted + held);
    }
    nic.release(&mut supply);
    frames
        .drain(..)
        .for_each(|mut frame| frame.recycle(&mut supply));
    assert!(supply.used.is_empty(), "a buffer is lost");
}

fn send<D: PciDevice<Registers = Model>>(
    input: &mut Input<'_>,
    nic: &mut PciNic<D>,
    frames: &mut [Frame],
) {
    let offload = offload(input);
    frames.iter_mut().for_each(|frame| frame.offload = offload);
    let pick: Vec<u32> = (0..input.below(8) as u32).collect();
    let report = nic.tx(0, frames, &pick);
    let all = (report.sent + report.full + report.refused + report.fault) as usize;
    let known = pick.len().min(frames.len());
    assert!(all == known || report.refused as usize == pick.len());
}

fn reset<D: PciDevice<Registers = Model>>(model: &Model) {
    let mut progress = D::Reset::default();
    let times = (0..u64::MAX).step_by(1_000_000);
    let mut results = times.map(|now_ns| D::reset(model, &mut progress, now_ns));
    let done = results.find(|done| *done != Ok(false));
    assert_eq!(done, Some(Ok(true)), "the device is not reset");
}
