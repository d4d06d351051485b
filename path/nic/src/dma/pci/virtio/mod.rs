//! Virtio-net devices (virtio 1.2, modern interface, split virtqueues).
//!
//! | module | contents |
//! |---|---|
//! | [`registers`] | the device's registers |
//! | [`ring`] | the driver's end of a split virtqueue |

pub mod registers;
pub mod ring;

use self::registers::{Notify, Register};
use self::ring::{ENTRIES_MAX, SplitQueue};
use super::Registers;
use super::device::{CloseReason, PciDevice, QueueMemory, RESET_NS, Received, StartupError};
use super::setup::{HEADER, PciSetup};
use crate::buffer::Buffer;
use crate::dma::addr::IoAddr;
use crate::dma::chunks::Chunk;
use crate::dma::queue::{DmaError, QueueName};
use crate::frame::Frame;
use crate::offload::{Checksum, Offload};
use crate::virtio;
use shmem::Span;

/// Bits of the status register.
const ACKNOWLEDGE: u32 = 1;
const DRIVER: u32 = 2;
const DRIVER_OK: u32 = 4;
const FEATURES_OK: u32 = 8;
const NEEDS_RESET: u32 = 64;
/// Feature bits.
const CSUM: u64 = 1 << 0;
const GUEST_CSUM: u64 = 1 << 1;
const VERSION_1: u64 = 1 << 32;
const ACCESS_PLATFORM: u64 = 1 << 33;
const ORDER_PLATFORM: u64 = 1 << 36;
/// Interrupt vector of received frames and configuration changes.
const VECTOR: u32 = 0;
/// Value that means no vector.
const NO_VECTOR: u32 = 0xffff;

/// Queue numbers.
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;

/// Access to all registers of a device.
pub trait VirtioRegisters: Registers<Register> + Notify + Clone {}

impl<R: Registers<Register> + Notify + Clone> VirtioRegisters for R {}

/// A virtio-net device.
#[derive(Debug)]
pub struct VirtioNet<R> {
    registers: R,
    receive: SplitQueue<Buffer>,
    transmit: SplitQueue<u32>,
    /// Numbers of the notification addresses of the receive and transmit queues.
    notify: [u16; 2],
    has_checksum: bool,
}

impl<R: VirtioRegisters> VirtioNet<R> {
    /// Notifies the device of new descriptors. If the write fails, the device only stalls.
    fn ring(&self, queue: u16) {
        let offset = self.notify.get(usize::from(queue)).copied().unwrap_or(0);
        let _ = self.registers.notify(queue, offset);
    }

    /// Returns the length and offloads of the frame in a buffer to which the device has written
    /// `len` bytes.
    fn content(&self, buffer: Buffer, len: usize) -> Option<(usize, Offload)> {
        let bytes = len.checked_sub(HEADER)?;
        let mut header = [0; virtio::HEADER_BYTES];
        buffer.span.read(&mut header).ok()?;
        let offload = virtio::decode(&header, bytes, self.has_checksum, false).ok()?;
        Some((bytes, offload))
    }
}

impl<R: VirtioRegisters> PciDevice for VirtioNet<R> {
    type Registers = R;
    type Header = [u8; HEADER];
    /// Time limit of a reset in progress.
    type Reset = Option<u64>;

    const SHORTEST: usize = 0;
    const COUNTS_MISSED: bool = false;

    fn reset(registers: &R, until: &mut Option<u64>, now_ns: u64) -> Result<bool, StartupError> {
        let until_ns = match *until {
            Some(until_ns) => until_ns,
            None => {
                registers.set(Register::Status, 0)?;
                *until.insert(now_ns.saturating_add(RESET_NS))
            }
        };
        if registers.get(Register::Status)? != 0 {
            return match now_ns < until_ns {
                true => Ok(false),
                false => Err(StartupError::Reset),
            };
        }
        *until = None;
        Ok(true)
    }

    fn start(registers: R, setup: &PciSetup, memory: QueueMemory) -> Result<Self, StartupError> {
        registers.set(Register::Status, ACKNOWLEDGE)?;
        registers.set(Register::Status, ACKNOWLEDGE | DRIVER)?;
        let features = negotiate(&registers)?;
        // The device reports a failure as a configuration change.
        registers.set(Register::ConfigVector, VECTOR)?;
        let (entries, name) = (setup.entries, QueueName::Receive(0));
        let (receive, of_receive) = queue(&registers, RECEIVE, name, entries, memory.receive)?;
        let name = QueueName::Transmit;
        let (transmit, of_transmit) = queue(&registers, TRANSMIT, name, entries, memory.transmit)?;
        let status = ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK;
        registers.set(Register::Status, status)?;
        Ok(Self {
            registers,
            receive,
            transmit,
            notify: [of_receive, of_transmit],
            has_checksum: features & CSUM != 0,
        })
    }

    fn stop(&mut self, buffer: &mut dyn FnMut(Buffer), chunk: &mut dyn FnMut(u32)) {
        let _ = self.registers.set(Register::Status, 0);
        self.receive.withdraw(buffer);
        self.transmit.withdraw(chunk);
    }

    fn check(&mut self) -> Result<u32, CloseReason> {
        match self.registers.get(Register::Status)? {
            status if status & NEEDS_RESET != 0 => Err(CloseReason::NeedsReset),
            status if status & DRIVER_OK == 0 => Err(CloseReason::Stopped),
            _ => Ok(0),
        }
    }

    fn has_checksum(&self) -> bool {
        self.has_checksum
    }

    fn free_receive_entries(&self) -> usize {
        self.receive.free_entries()
    }

    fn posted(&self) -> usize {
        self.receive.posted()
    }

    fn post(&mut self, buffer: Buffer, address: IoAddr) -> Result<(), Buffer> {
        let len = buffer.span.len() as u32;
        self.receive.post(buffer, address, len, true)
    }

    fn publish_buffers(&mut self) -> Result<(), DmaError> {
        if self.receive.publish()? {
            self.ring(RECEIVE);
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Received>, DmaError> {
        let taken = self.receive.take()?;
        Ok(taken.map(|(buffer, len)| Received {
            buffer,
            frame: self.content(buffer, len as usize),
        }))
    }

    fn set_interrupts(&mut self, enabled: bool) -> Result<bool, DmaError> {
        self.receive.set_interrupts(enabled)
    }

    fn header(frame: &Frame) -> [u8; HEADER] {
        // The header of a sent frame must not claim that a checksum was verified.
        let offload = match frame.offload.checksum {
            Checksum::Blank { .. } => frame.offload,
            Checksum::Unknown | Checksum::Valid => Offload::default(),
        };
        let mut header = [0; HEADER];
        let fields = virtio::encode(offload, virtio::headers(frame));
        header[..virtio::HEADER_BYTES].copy_from_slice(&fields);
        header
    }

    fn send(&mut self, chunk: Chunk, _: &Frame) -> Result<(), u32> {
        let len = chunk.memory.len() as u32;
        self.transmit.post(chunk.number, chunk.address, len, false)
    }

    fn publish_sent(&mut self) -> Result<(), DmaError> {
        if self.transmit.publish()? {
            self.ring(TRANSMIT);
        }
        Ok(())
    }

    fn take_sent(&mut self) -> Result<Option<u32>, DmaError> {
        Ok(self.transmit.take()?.map(|(chunk, _)| chunk))
    }
}

/// Accepts the offered features that this driver supports, and returns them.
fn negotiate(registers: &impl VirtioRegisters) -> Result<u64, StartupError> {
    let mut offered = 0;
    for half in 0..2 {
        registers.set(Register::DeviceFeatureSelect, half)?;
        let bits = registers.get(Register::DeviceFeature)?;
        offered |= u64::from(bits) << (32 * half);
    }
    for (bit, name) in [
        (VERSION_1, "VIRTIO_F_VERSION_1"),
        (ACCESS_PLATFORM, "VIRTIO_F_ACCESS_PLATFORM"),
    ] {
        if offered & bit == 0 {
            return Err(StartupError::Feature(name));
        }
    }
    let both = CSUM | GUEST_CSUM;
    let checksums = if offered & both == both { both } else { 0 };
    let order = offered & ORDER_PLATFORM;
    let accepted = VERSION_1 | ACCESS_PLATFORM | order | checksums;
    for half in 0..2 {
        registers.set(Register::DriverFeatureSelect, half)?;
        registers.set(Register::DriverFeature, (accepted >> (32 * half)) as u32)?;
    }
    let status = ACKNOWLEDGE | DRIVER | FEATURES_OK;
    registers.set(Register::Status, status)?;
    match registers.get(Register::Status)? & FEATURES_OK {
        0 => Err(StartupError::Rejects),
        _ => Ok(accepted),
    }
}

/// Creates and enables queue `number`. Returns it with the number of its notification address.
fn queue<T>(
    registers: &impl VirtioRegisters,
    number: u16,
    name: QueueName,
    entries: u16,
    (memory, address): (Span, IoAddr),
) -> Result<(SplitQueue<T>, u16), StartupError> {
    registers.set(Register::QueueSelect, number.into())?;
    let most = registers.get(Register::QueueSize)?.min(ENTRIES_MAX.into());
    let entries = entries.min(most as u16);
    if !entries.is_power_of_two() {
        return Err(StartupError::Queue(name));
    }
    let mut queue = SplitQueue::new(name, entries, memory, address).ok_or(StartupError::Memory)?;
    if number == TRANSMIT {
        // The driver frees the memory of sent frames when it sends others, so it needs no
        // interrupt.
        queue
            .set_interrupts(false)
            .map_err(|_| StartupError::Memory)?;
    }
    registers.set(Register::QueueSize, entries.into())?;
    let vector = if number == RECEIVE { VECTOR } else { NO_VECTOR };
    registers.set(Register::QueueVector, vector)?;
    if registers.get(Register::QueueVector)? != vector {
        return Err(StartupError::Queue(name));
    }
    let addresses = queue.addresses();
    for (low, high, address) in [
        (
            Register::QueueDescriptors,
            Register::QueueDescriptorsHigh,
            addresses.descriptors,
        ),
        (
            Register::QueueAvailable,
            Register::QueueAvailableHigh,
            addresses.available,
        ),
        (Register::QueueUsed, Register::QueueUsedHigh, addresses.used),
    ] {
        registers.set(low, address.bits() as u32)?;
        registers.set(high, (address.bits() >> 32) as u32)?;
    }
    let notify = registers.get(Register::QueueNotifyOffset)? as u16;
    if !registers.can_notify(notify) {
        return Err(StartupError::Queue(name));
    }
    registers.set(Register::QueueEnable, 1)?;
    Ok((queue, notify))
}
