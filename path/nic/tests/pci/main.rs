//! Tests the drivers of PCI devices with models of the devices, which may break every rule.

mod intel;
mod virtio;

use nic::dma::IoAddr;
use nic::dma::pci::{PciDevice, PciNic, PciSetup, StartupError};
use nic::{Buffers, Checksum, Frame, Nic, Offload, Pool};
use shmem::{Area, Span};

const ENTRIES: u16 = 8;
const BUFFERS: usize = 16;
const BUFFER: usize = 2048;
const BASE: u64 = 1 << 32;
const MTU: usize = 1500;
/// A pending TCP checksum in an IPv4 packet.
const BLANK: Offload = Offload {
    checksum: Checksum::Blank {
        start: 34,
        offset: 16,
    },
    gso: None,
};

fn setup() -> PciSetup {
    PciSetup {
        entries: ENTRIES,
        mtu: MTU,
        base: IoAddr::from_bits(BASE),
    }
}

/// Returns memory for buffers and queues.
fn memory() -> Area {
    let bytes = BUFFERS * BUFFER + setup().bytes().next_multiple_of(abi::PAGE);
    Area::anonymous(bytes).unwrap()
}

/// Returns the part of `memory` that a device accesses at an I/O address.
fn device_span(memory: Area, address: u64, len: usize) -> Span {
    let offset = address
        .checked_sub(BASE)
        .expect("an address below the memory");
    let span = memory.at(offset as usize, len);
    span.expect("an address that is not mapped")
}

/// Resets a device, polling it once per microsecond.
fn reset<D: PciDevice>(registers: &D::Registers) -> Result<(), StartupError> {
    let mut progress = D::Reset::default();
    for now_ns in (0..400_000_000).step_by(1000) {
        if D::reset(registers, &mut progress, now_ns)? {
            return Ok(());
        }
    }
    panic!("the reset does not finish")
}

/// Starts a device in `memory`.
fn start<D: PciDevice>(
    registers: D::Registers,
    memory: Area,
) -> Result<(PciNic<D>, Pool), StartupError> {
    let pool = memory.part(0, BUFFERS * BUFFER).unwrap();
    let rest = memory.part(pool.len(), memory.len() - pool.len()).unwrap();
    reset::<D>(&registers)?;
    let nic = PciNic::start(setup(), registers, pool, rest)?;
    Ok((nic, Pool::new(pool, BUFFER)))
}

fn frame(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(seed)).collect()
}

fn poll(nic: &mut dyn Nic, pool: &mut Pool) -> Vec<Frame> {
    let mut frames = Vec::new();
    nic.rx(0, 64, pool, &mut frames);
    frames
}

fn counter(nic: &dyn Nic, name: &str) -> u64 {
    let found = nic.counters().into_iter().find(|(own, _)| *own == name);
    found.unwrap().1
}

/// Asserts that the pool contains each buffer once.
fn assert_complete(pool: &mut Pool) {
    assert_eq!(pool.available(), BUFFERS);
    let taken = std::iter::from_fn(|| pool.take());
    let mut places: Vec<_> = taken.map(|buffer| buffer.span.addr()).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), BUFFERS);
}
