//! A virtio-net device as a NIC.

use super::registers::{Register, Registers};
use super::ring::{ENTRIES_MAX, SplitQueue, queue_bytes};
use crate::buffer::{Buffer, Buffers, Piece};
use crate::device::{Caps, Nic, TxReport};
use crate::dma::addr::IoAddr;
use crate::dma::chunks::Chunks;
use crate::dma::queue::{DmaError, QueueName};
use crate::frame::{ETHERNET, Frame};
use crate::offload::{Checksum, Offload};
use crate::virtio;
use shmem::time::monotonic_ns;
use shmem::{Area, Fault, Span};

const VLAN_TAG: usize = 4;
/// Bytes before each frame: the header of virtio-net, and its number of buffers.
const HEADER: usize = virtio::BYTES + 2;
/// Alignment of frames to send.
const CHUNK_ALIGN: usize = 64;

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
/// The vector of received frames and of changes of the configuration.
const VECTOR: u32 = 0;
/// Number of no vector.
const NO_VECTOR: u32 = 0xffff;
/// How long a reset may take.
const RESET_NS: u64 = 100_000_000;

/// Numbers of the queues.
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;

/// Why a device cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// The registers are inaccessible.
    #[error("the device's registers are not accessible")]
    Registers,
    /// The status register never becomes 0.
    #[error("the device does not complete its reset")]
    Reset,
    /// A feature is missing.
    #[error(
        "the device lacks the feature {0}: with QEMU write \
         disable-legacy=on,iommu_platform=on"
    )]
    Feature(&'static str),
    /// The device rejects the features that it has offered.
    #[error("the device rejects the features that it offers")]
    Rejects,
    /// A queue cannot be used.
    #[error("the device has no usable {0}")]
    Queue(QueueName),
    /// A size is wrong.
    #[error("the queues do not fit their memory")]
    Memory,
}

/// Why a NIC is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The device violates the rules of a queue.
    #[error(transparent)]
    Queue(#[from] DmaError),
    /// The device has failed, for example because it could not access memory.
    #[error("the device has failed and needs a reset")]
    NeedsReset,
    /// The device has stopped, for example because it has reset itself.
    #[error("the device has stopped by itself")]
    Stopped,
    /// The registers are inaccessible.
    #[error("the device's registers are not accessible")]
    Registers,
}

impl From<Fault> for StartupError {
    fn from(_: Fault) -> Self {
        Self::Registers
    }
}

/// Properties of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciSetup {
    /// The most entries of each queue, a power of two.
    pub entries: u16,
    /// Bytes of IP in the longest frame.
    pub mtu: usize,
    /// The I/O address of the pool, which the memory of the queues follows.
    pub base: IoAddr,
}

impl PciSetup {
    /// Returns the bytes of the memory of both queues and of frames to send.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let (_, queue) = queue_bytes(self.entries);
        2 * queue + usize::from(self.entries) * self.chunk_bytes()
    }

    /// Returns the most bytes of a frame without a VLAN tag.
    #[must_use]
    pub fn max_frame(&self) -> usize {
        self.mtu + ETHERNET
    }

    fn chunk_bytes(&self) -> usize {
        (HEADER + self.longest()).next_multiple_of(CHUNK_ALIGN)
    }

    fn longest(&self) -> usize {
        self.mtu + ETHERNET + VLAN_TAG
    }
}

/// Counters of a NIC.
#[derive(Clone, Copy, Debug, Default)]
struct PciCounters {
    /// Frames whose header is invalid, or that are too short.
    malformed: u64,
    /// Buffers outside the I/O addresses.
    foreign: u64,
}

/// A NIC whose device is a PCI device.
#[derive(Debug)]
pub struct PciNic<R> {
    setup: PciSetup,
    registers: R,
    /// The memory of the buffers, whose first byte has the first I/O address.
    pool: Area,
    /// The memory of the queues and of frames to send.
    memory: Area,
    receive: SplitQueue<Buffer>,
    transmit: SplitQueue<u32>,
    /// Numbers of the queues' notification addresses.
    notify: [u16; 2],
    chunks: Chunks,
    has_checksum: bool,
    /// Why the NIC is closed.
    closed: Option<CloseReason>,
    /// Whether the driver polls without an interrupt.
    polls: bool,
    counters: PciCounters,
}

impl<R: Registers> PciNic<R> {
    /// Resets a device and starts it. `pool` holds the buffers of [`Nic::rx`], and `memory` has
    /// [`PciSetup::bytes`] behind it. Their distance is the same in the device's address space.
    ///
    /// # Errors
    /// The device is unsuitable or does not follow the specification.
    pub fn start(
        setup: PciSetup,
        registers: R,
        pool: Area,
        memory: Area,
    ) -> Result<Self, StartupError> {
        reset(&registers)?;
        registers.set(Register::Status, ACKNOWLEDGE)?;
        registers.set(Register::Status, ACKNOWLEDGE | DRIVER)?;
        let features = negotiate(&registers)?;
        // The device reports its failure as a change of its configuration.
        registers.set(Register::ConfigVector, VECTOR)?;
        let part = |at: usize, bytes: usize| {
            let span = memory.at(at, bytes)?;
            let distance = span.addr().checked_sub(pool.span().addr())?;
            Some((span, setup.base.add(distance)?))
        };
        let (_, bytes) = queue_bytes(setup.entries);
        let chunk_bytes = usize::from(setup.entries) * setup.chunk_bytes();
        let places = part(0, bytes)
            .zip(part(bytes, bytes))
            .zip(part(2 * bytes, chunk_bytes));
        let ((receive, transmit), chunks) = places.ok_or(StartupError::Memory)?;
        let name = QueueName::Receive(0);
        let (receive, of_receive) = queue(&registers, RECEIVE, name, setup.entries, receive)?;
        let name = QueueName::Transmit;
        let (transmit, of_transmit) = queue(&registers, TRANSMIT, name, setup.entries, transmit)?;
        let entries = u32::from(transmit.entries());
        let chunks =
            Chunks::new(entries, chunks, setup.chunk_bytes()).ok_or(StartupError::Memory)?;
        let status = ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK;
        registers.set(Register::Status, status)?;
        Ok(Self {
            setup,
            registers,
            pool,
            memory,
            receive,
            transmit,
            notify: [of_receive, of_transmit],
            chunks,
            has_checksum: features & CSUM != 0,
            closed: None,
            polls: true,
            counters: PciCounters::default(),
        })
    }

    /// Returns why the NIC is closed, or `None` if it works.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        self.closed
    }

    /// Starts the device of a closed NIC again. [`Nic::rx`] has returned its buffers before.
    ///
    /// # Errors
    /// As [`PciNic::start`].
    pub fn restart(&mut self) -> Result<(), StartupError>
    where
        R: Clone,
    {
        let (registers, counters) = (self.registers.clone(), self.counters);
        let next = Self::start(self.setup, registers, self.pool, self.memory)?;
        *self = Self { counters, ..next };
        Ok(())
    }

    /// Reads the device's status, and closes the NIC if the device has failed.
    pub fn check(&mut self) {
        if self.closed.is_some() {
            return;
        }
        match self.registers.get(Register::Status) {
            Ok(status) if status & NEEDS_RESET != 0 => self.close(CloseReason::NeedsReset),
            Ok(status) if status & DRIVER_OK == 0 => self.close(CloseReason::Stopped),
            Ok(_) => {}
            Err(Fault) => self.close(CloseReason::Registers),
        }
    }

    /// Closes the NIC. The next [`Nic::rx`] has the supply, to which the posted buffers return.
    fn close(&mut self, reason: CloseReason) {
        self.closed = Some(reason);
        self.polls = true;
    }

    /// Stops the device, and then returns all posted buffers to their supply.
    pub fn stop(&mut self, buffers: &mut dyn Buffers) {
        // Does not wait: a device that does not stop can reach the memory that was mapped for it,
        // and nothing else.
        let _ = self.registers.set(Register::Status, 0);
        self.receive.withdraw(|buffer| buffers.put(buffer.id));
        let chunks = &mut self.chunks;
        self.transmit.withdraw(|chunk| chunks.put(chunk));
        self.polls = false;
    }

    fn poll(
        &mut self,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> Result<usize, DmaError> {
        self.receive.set_interrupts(false)?;
        self.post(buffers)?;
        let mut frames = 0;
        while frames < budget
            && let Some((buffer, len)) = self.receive.take()?
        {
            match self.frame(buffer, len as usize) {
                Some(frame) => {
                    out.push(frame);
                    frames += 1;
                }
                None => {
                    self.counters.malformed += 1;
                    buffers.put(buffer.id);
                }
            }
        }
        self.polls = frames >= budget || self.receive.set_interrupts(true)?;
        Ok(frames)
    }

    /// Posts as many buffers as the queue has room for.
    fn post(&mut self, buffers: &mut dyn Buffers) -> Result<(), DmaError> {
        while self.receive.room() > 0
            && let Some(buffer) = buffers.take()
        {
            let Some(address) = self.address(buffer.span) else {
                // The supply's other buffers lie there as well.
                buffers.put(buffer.id);
                self.counters.foreign += 1;
                break;
            };
            let len = buffer.span.len() as u32;
            if let Err(buffer) = self.receive.post(buffer, address, len, true) {
                buffers.put(buffer.id);
                break;
            }
        }
        if self.receive.publish()? {
            self.ring(RECEIVE);
        }
        Ok(())
    }

    /// Returns the I/O address of a part of the pool.
    fn address(&self, span: Span) -> Option<IoAddr> {
        let offset = span.addr().checked_sub(self.pool.span().addr())?;
        self.pool.at(offset, span.len())?;
        self.setup.base.add(offset)
    }

    /// Returns the frame in a buffer of which the device has written `len` bytes.
    fn frame(&self, buffer: Buffer, len: usize) -> Option<Frame> {
        let bytes = len.checked_sub(HEADER)?;
        if bytes < ETHERNET || bytes > self.setup.longest() {
            return None;
        }
        let mut header = [0; virtio::BYTES];
        buffer.span.read(&mut header).ok()?;
        let offload = virtio::decode(&header, bytes, self.has_checksum, false).ok()?;
        let mut frame = Frame::empty();
        frame.push(Piece {
            span: buffer.span.skip(HEADER).take(bytes),
            buffer: buffer.id,
        });
        frame.snapshot().ok()?;
        frame.offload = offload;
        Some(frame)
    }

    fn send(&mut self, frames: &[Frame], pick: &[u32]) -> Result<TxReport, DmaError> {
        while let Some((chunk, _)) = self.transmit.take()? {
            self.chunks.put(chunk);
        }
        let (caps, mut report) = (self.caps(), TxReport::default());
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            if caps.takes(frame) {
                let transmit = &mut self.transmit;
                let post = |chunk, address, len| transmit.post(chunk, address, len, false);
                self.chunks.send(&header(frame), frame, &mut report, post);
            } else {
                report.refused += 1;
            }
        }
        if self.transmit.publish()? {
            self.ring(TRANSMIT);
        }
        Ok(report)
    }

    /// Notifies the device. A device that gets no notification only stalls.
    fn ring(&self, queue: u16) {
        let offset = self.notify.get(usize::from(queue)).copied().unwrap_or(0);
        let _ = self.registers.notify(queue, offset);
    }
}

/// Returns the header that is sent before a frame.
fn header(frame: &Frame) -> [u8; HEADER] {
    // A sender reports no checksum as verified.
    let offload = match frame.offload.checksum {
        Checksum::Blank { .. } => frame.offload,
        Checksum::Unknown | Checksum::Valid => Offload::default(),
    };
    let mut header = [0; HEADER];
    let fields = virtio::encode(offload, virtio::headers(frame));
    header[..virtio::BYTES].copy_from_slice(&fields);
    header
}

/// Resets a device, and waits until it has stopped.
fn reset(registers: &impl Registers) -> Result<(), StartupError> {
    registers.set(Register::Status, 0)?;
    let until_ns = monotonic_ns().saturating_add(RESET_NS);
    while registers.get(Register::Status)? != 0 {
        if monotonic_ns() >= until_ns {
            return Err(StartupError::Reset);
        }
    }
    Ok(())
}

/// Accepts the features that this driver supports, and returns them.
fn negotiate(registers: &impl Registers) -> Result<u64, StartupError> {
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

/// Creates queue `number` and enables it. Returns it, and the number of its notification address.
fn queue<T>(
    registers: &impl Registers,
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
        // The memory of sent frames is taken back when others are sent.
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
    let places = queue.places();
    for (low, high, address) in [
        (
            Register::QueueDescriptors,
            Register::QueueDescriptorsHigh,
            places.descriptors,
        ),
        (
            Register::QueueAvailable,
            Register::QueueAvailableHigh,
            places.available,
        ),
        (Register::QueueUsed, Register::QueueUsedHigh, places.used),
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

impl<R: Registers> Nic for PciNic<R> {
    fn caps(&self) -> Caps {
        Caps {
            checksum: self.has_checksum,
            tso: false,
            max_frame: self.setup.max_frame(),
        }
    }

    fn rx(
        &mut self,
        _: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        if self.closed.is_some() {
            if self.polls {
                self.stop(buffers);
            }
            return 0;
        }
        let before = out.len();
        let polled = self.poll(budget, buffers, out);
        polled.unwrap_or_else(|error| {
            self.closed = Some(error.into());
            self.stop(buffers);
            out.len() - before
        })
    }

    fn tx(&mut self, _: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let refused = TxReport::all_refused(pick);
        if self.closed.is_some() {
            return refused;
        }
        self.send(frames, pick).unwrap_or_else(|error| {
            self.close(error.into());
            refused
        })
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        self.polls.then_some(now_ns)
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        self.stop(buffers);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("rx_malformed", self.counters.malformed),
            ("rx_foreign", self.counters.foreign),
            ("rx_posted", self.receive.posted() as u64),
            ("closed", self.closed.is_some().into()),
        ]
    }
}
