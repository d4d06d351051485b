//! The Intel 82574 (datasheet 82574 GbE Controller Family), with extended receive descriptors, one
//! receive queue and one transmit queue.
//!
//! | module | contents |
//! |---|---|
//! | [`registers`] | the device's registers |
//! | [`reset`] | its reset |
//! | [`ring`] | the driver's end of a descriptor ring |

pub mod registers;
pub mod reset;
pub mod ring;

use self::registers::{IntelRegister, IntelRegisters, REMOVED};
use self::reset::{
    ENABLE, IntelReset, RESET, disable, modify_bits, stop_requests, wait_until_idle,
};
use self::ring::DescriptorRing;
use super::device::{CloseReason, PciDevice, QueueMemory, Received, StartupError};
use super::setup::PciSetup;
use crate::buffer::Buffer;
use crate::dma::addr::IoAddr;
use crate::dma::checksum;
use crate::dma::chunks::Chunk;
use crate::dma::queue::{DmaError, Misuse, QueueName};
use crate::frame::{ETHERNET_BYTES, Frame};
use crate::offload::{Checksum, Offload};

/// Bits of `CTRL_EXT`: an interrupt message disables its causes (24), and so does a read of ICR
/// (27).
const AUTO_MASK: u32 = 1 << 24;
const READ_MASK: u32 = 1 << 27;
/// Interrupt cause: a frame in receive queue 0.
const RECEIVED: u32 = 1 << 20;
/// IVAR: vector 0 for receive queue 0, no vector for other causes.
const VECTORS: u32 = 1 << 3;
/// Minimum time between two interrupts, 32 µs in units of 256 ns.
const INTERVAL: u32 = 125;
/// RCTL: enables the receiver for all unicast, multicast and broadcast frames, strips the frame's
/// checksum, and selects buffers of [`BUFFER`] bytes.
const RECEIVE: u32 = ENABLE | 1 << 3 | 1 << 4 | 1 << 15 | 1 << 26;
/// RCTL: accepts frames longer than 1522 bytes.
const LONG_FRAMES: u32 = 1 << 5;
/// Size of a receive buffer in bytes.
const BUFFER: usize = 2048;
/// Maximum length in bytes, with the checksum, of a frame that is received without [`LONG_FRAMES`].
const STANDARD_FRAME: usize = 1522;
/// Length of a frame's checksum in bytes.
const FRAME_CHECKSUM: usize = 4;
/// TCTL: enables the transmitter, pads short frames, sets the half-duplex parameters, and permits
/// several concurrent requests.
const TRANSMIT: u32 = ENABLE | 1 << 3 | 0x0f << 4 | 0x3f << 12 | 1 << 28;
/// TCTL: mask of the half-duplex parameters.
const HALF_DUPLEX: u32 = 0xff << 4 | 0x3ff << 12;
/// RXDCTL: thresholds count descriptors; the device writes each descriptor back immediately.
const RECEIVE_CONTROL: u32 = 1 << 24 | 1 << 16;
/// TXDCTL: thresholds like RXDCTL, prefetching, and a bit that must be set.
const TRANSMIT_CONTROL: u32 = 1 << 24 | 1 << 22 | 1 << 16 | 1 << 8 | 0x1f;
/// RXCSUM: verifies the checksums of IP, TCP and UDP.
const RECEIVE_CHECKSUM: u32 = 1 << 8 | 1 << 9;
/// RFCTL: selects extended descriptors, and disables the filters for iSCSI and NFS and the
/// detection of acknowledgements.
const RECEIVE_FILTER: u32 = 1 << 15 | 1 << 12 | 1 << 7 | 1 << 6 | 1 << 0;

/// Bits of the second word of a completed receive descriptor.
const DONE: u64 = 1 << 0;
const LAST: u64 = 1 << 1;
const CHECKSUM_IGNORED: u64 = 1 << 2;
const TRANSPORT_CHECKED: u64 = 1 << 5;
const TRANSPORT_WRONG: u64 = 1 << 29;
/// Error bits of a frame: checksum, symbol, sequence, carrier extension, data.
const DAMAGED: u64 = 1 << 24 | 1 << 25 | 1 << 26 | 1 << 28 | 1 << 31;

/// Bit of the second word of a transmit descriptor: extended format.
const EXTENDED: u64 = 1 << 29;
/// Bit of a context descriptor that selects the TCP checksum.
const CONTEXT_TCP: u64 = 1 << 24;
/// Bits of a data descriptor: its type, end of the frame, insertion of the frame's checksum, and
/// report of completion.
const DATA: u64 = EXTENDED | 1 << 20 | 1 << 24 | 1 << 25 | 1 << 27;
/// Bit of a data descriptor: the device inserts the transport checksum.
const INSERT_CHECKSUM: u64 = 1 << 41;
/// Bit that the device sets in a completed data descriptor.
const SENT: u64 = 1 << 32;

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const TCP: (u8, u16) = (6, 16);
const UDP: (u8, u16) = (17, 6);

/// An Intel 82574.
#[derive(Debug)]
pub struct Intel82574<R> {
    registers: R,
    receive: DescriptorRing<Buffer>,
    transmit: DescriptorRing<u32>,
    /// Whether the next received buffer continues the previous frame.
    continues: bool,
}

impl<R: IntelRegisters> Intel82574<R> {
    /// Returns the length and offloads of a frame from the second word of its descriptor, or `None`
    /// if the frame is damaged or is a part of a longer frame.
    fn content(&mut self, word: u64) -> Option<(usize, Offload)> {
        let is_last = word & LAST != 0;
        let is_whole = is_last && !self.continues;
        self.continues = !is_last;
        if !is_whole || word & DAMAGED != 0 {
            return None;
        }
        let is_valid = word & (CHECKSUM_IGNORED | TRANSPORT_CHECKED | TRANSPORT_WRONG);
        let checksum = match is_valid {
            TRANSPORT_CHECKED => Checksum::Valid,
            _ => Checksum::Unknown,
        };
        let offload = Offload {
            checksum,
            gso: None,
        };
        Some((bytes(word), offload))
    }
}

/// Returns the length in the second word of a completed receive descriptor.
fn bytes(word: u64) -> usize {
    usize::from((word >> 32) as u16)
}

impl<R: IntelRegisters> PciDevice for Intel82574<R> {
    type Registers = R;
    type Header = [u8; 0];
    type Reset = IntelReset;

    const SHORTEST: usize = 17;
    const COUNTS_MISSED: bool = true;

    fn reset(registers: &R, reset: &mut IntelReset, now_ns: u64) -> Result<bool, StartupError> {
        reset.advance(registers, now_ns)
    }

    fn start(registers: R, setup: &PciSetup, memory: QueueMemory) -> Result<Self, StartupError> {
        let entries = setup.entries;
        let name = QueueName::Receive(0);
        let receive = DescriptorRing::new(name, entries, memory.receive, DONE);
        let receive = receive.ok_or(StartupError::Memory)?;
        let name = QueueName::Transmit;
        let transmit = DescriptorRing::new(name, entries, memory.transmit, SENT);
        let transmit = transmit.ok_or(StartupError::Memory)?;
        set_receive_queue(&registers, &receive)?;
        set_transmit_queue(&registers, &transmit)?;
        let is_long = setup.longest() + FRAME_CHECKSUM > STANDARD_FRAME;
        let long = if is_long { LONG_FRAMES } else { 0 };
        for (register, value) in [
            (IntelRegister::ReceiveFilter, RECEIVE_FILTER),
            (IntelRegister::ReceiveChecksum, RECEIVE_CHECKSUM),
            (IntelRegister::Queues, 0),
            (IntelRegister::Vectors, VECTORS),
            (IntelRegister::Interval, INTERVAL),
            (IntelRegister::CausesClear, RECEIVED),
            (IntelRegister::CausesMask, RECEIVED),
        ] {
            registers.set(register, value)?;
        }
        modify_bits(
            &registers,
            IntelRegister::ControlExtended,
            READ_MASK,
            AUTO_MASK,
        )?;
        modify_bits(&registers, IntelRegister::Transmit, HALF_DUPLEX, TRANSMIT)?;
        registers.set(IntelRegister::Receive, RECEIVE | long)?;
        Ok(Self {
            registers,
            receive,
            transmit,
            continues: false,
        })
    }

    fn stop(&mut self, buffer: &mut dyn FnMut(Buffer), chunk: &mut dyn FnMut(u32)) {
        let _ = disable(&self.registers);
        // Pending requests must not write to returned buffers. If the registers are inaccessible,
        // the device was removed and has no requests.
        let _ = stop_requests(&self.registers).and_then(|()| wait_until_idle(&self.registers));
        let _ = self.registers.set(IntelRegister::Control, RESET);
        self.receive.withdraw(buffer);
        self.transmit.withdraw(chunk);
    }

    fn check(&mut self) -> Result<u32, CloseReason> {
        match self.registers.get(IntelRegister::Receive)? {
            REMOVED => Err(CloseReason::Registers),
            receive if receive & ENABLE == 0 => Err(CloseReason::Stopped),
            _ => Ok(self.registers.get(IntelRegister::Missed)?),
        }
    }

    fn has_checksum(&self) -> bool {
        true
    }

    fn free_receive_entries(&self) -> usize {
        self.receive.free_entries()
    }

    fn posted(&self) -> usize {
        self.receive.posted()
    }

    fn post(&mut self, buffer: Buffer, address: IoAddr) -> Result<(), Buffer> {
        if buffer.span.len() < BUFFER {
            return Err(buffer);
        }
        self.receive.post(buffer, &[[address.bits(), 0]])
    }

    fn publish_buffers(&mut self) -> Result<(), DmaError> {
        // If this write fails, the device only stalls.
        if let Some(tail) = self.receive.publish() {
            let _ = self.registers.set(IntelRegister::ReceiveTail, tail.into());
        }
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Received>, DmaError> {
        let taken = self.receive.take(|buffer, word| {
            let (len, most) = (bytes(word) as u32, buffer.span.len() as u32);
            match len <= most {
                true => Ok(()),
                false => Err(Misuse::TooLong { len, most }),
            }
        })?;
        Ok(taken.map(|(buffer, word)| Received {
            buffer,
            frame: self.content(word),
        }))
    }

    fn set_interrupts(&mut self, enabled: bool) -> Result<bool, DmaError> {
        // An interrupt message disables its cause, so nothing needs to be disabled before a poll.
        // After the cause is enabled, the device raises the interrupt immediately if it has stored
        // a frame since its last message.
        if enabled {
            let _ = self.registers.set(IntelRegister::CausesEnable, RECEIVED);
        }
        self.receive.is_ready()
    }

    fn header(_: &Frame) -> [u8; 0] {
        []
    }

    fn send(&mut self, chunk: Chunk, frame: &Frame) -> Result<(), u32> {
        let data = [chunk.address.bits(), DATA | chunk.memory.len() as u64];
        let Checksum::Blank { start, offset } = frame.offload.checksum else {
            return self.transmit.post(chunk.number, &[data]);
        };
        match context(frame, start, offset) {
            Some(context) => {
                let data = [data[0], data[1] | INSERT_CHECKSUM];
                self.transmit.post(chunk.number, &[context, data])
            }
            None if checksum::complete_in(chunk.memory, (start, offset)).is_ok() => {
                self.transmit.post(chunk.number, &[data])
            }
            None => Err(chunk.number),
        }
    }

    fn publish_sent(&mut self) -> Result<(), DmaError> {
        if let Some(tail) = self.transmit.publish() {
            let _ = self.registers.set(IntelRegister::TransmitTail, tail.into());
        }
        Ok(())
    }

    fn take_sent(&mut self) -> Result<Option<u32>, DmaError> {
        let taken = self.transmit.take(|_, _| Ok(()))?;
        Ok(taken.map(|(chunk, _)| chunk))
    }
}

/// Returns the context descriptor for the checksum of a TCP or UDP packet without IPv6 extension
/// headers. Returns `None` for other packets, which a device need not support.
fn context(frame: &Frame, start: u16, offset: u16) -> Option<[u64; 2]> {
    let at = ETHERNET_BYTES + frame.tag_bytes();
    let (kind, packet) = frame.header().get(at - 2..)?.split_first_chunk()?;
    let (len, protocol) = match *kind {
        IPV4 => (usize::from(packet.first()? & 0x0f) * 4, *packet.get(9)?),
        IPV6 => (40, *packet.get(6)?),
        _ => return None,
    };
    let is_transport = usize::from(start) == at + len;
    if !is_transport || ![TCP, UDP].contains(&(protocol, offset)) {
        return None;
    }
    let tcp = if protocol == TCP.0 { CONTEXT_TCP } else { 0 };
    let (start, field) = (u64::from(start), u64::from(start + offset));
    Some([start << 32 | field << 40, EXTENDED | tcp])
}

/// Sets the receive ring of an idle device.
fn set_receive_queue<T>(
    registers: &impl IntelRegisters,
    ring: &DescriptorRing<T>,
) -> Result<(), StartupError> {
    for (register, value) in [
        (IntelRegister::ReceiveLength1, 0),
        (IntelRegister::ReceiveDelay, 0),
        (IntelRegister::ReceiveDelayMost, 0),
        (IntelRegister::ReceiveControl, RECEIVE_CONTROL),
    ] {
        registers.set(register, value)?;
    }
    let places = [
        (IntelRegister::ReceiveBase, ring.address().bits() as u32),
        (
            IntelRegister::ReceiveBaseHigh,
            (ring.address().bits() >> 32) as u32,
        ),
        (IntelRegister::ReceiveLength, ring.bytes()),
        (IntelRegister::ReceiveHead, 0),
        (IntelRegister::ReceiveTail, 0),
    ];
    set_queue(registers, places, QueueName::Receive(0))
}

/// Sets the transmit ring of an idle device.
fn set_transmit_queue<T>(
    registers: &impl IntelRegisters,
    ring: &DescriptorRing<T>,
) -> Result<(), StartupError> {
    registers.set(IntelRegister::TransmitLength1, 0)?;
    registers.set(IntelRegister::TransmitControl, TRANSMIT_CONTROL)?;
    let places = [
        (IntelRegister::TransmitBase, ring.address().bits() as u32),
        (
            IntelRegister::TransmitBaseHigh,
            (ring.address().bits() >> 32) as u32,
        ),
        (IntelRegister::TransmitLength, ring.bytes()),
        (IntelRegister::TransmitHead, 0),
        (IntelRegister::TransmitTail, 0),
    ];
    set_queue(registers, places, QueueName::Transmit)
}

/// Writes the registers of a ring, and checks that the device has accepted the values.
fn set_queue(
    registers: &impl IntelRegisters,
    places: [(IntelRegister, u32); 5],
    name: QueueName,
) -> Result<(), StartupError> {
    for (register, value) in places {
        registers.set(register, value)?;
        if registers.get(register)? != value {
            return Err(StartupError::Queue(name));
        }
    }
    Ok(())
}
