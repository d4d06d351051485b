//! Registers of the 82574 (Intel 82574 GbE Controller Family datasheet). Each has 32 bits.

use crate::dma::pci::registers::{RegisterWindow, Registers};
use abi::pci::{INTEL_QUEUES_AT, Structure};
use shmem::{Fault, Span};

/// Value of every register of a removed device.
pub(super) const REMOVED: u32 = u32::MAX;

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum IntelRegister {
    /// CTRL: reset and link.
    Control = 0x0000,
    /// STATUS.
    Status = 0x0008,
    /// EEC: state of the non-volatile memory. The driver never writes this register.
    Nvm = 0x0010,
    /// `CTRL_EXT`: handling of interrupts.
    ControlExtended = 0x0018,
    /// ICR: pending interrupt causes. A read clears them.
    Causes = 0x00c0,
    /// IMS: enables interrupt causes.
    CausesEnable = 0x00d0,
    /// IMC: disables interrupt causes.
    CausesDisable = 0x00d8,
    /// EIAC: causes that an interrupt message clears.
    CausesClear = 0x00dc,
    /// IAM: causes that an interrupt message disables.
    CausesMask = 0x00e0,
    /// IVAR: interrupt vectors of the causes.
    Vectors = 0x00e4,
    /// EITR 0: minimum time between two interrupt messages of vector 0, in units of 256 ns.
    Interval = 0x00e8,
    /// RCTL: receive control.
    Receive = 0x0100,
    /// TCTL: transmit control.
    Transmit = 0x0400,
    /// RDBAL 0: lower half of the receive ring's address.
    ReceiveBase = 0x2800,
    /// RDBAH 0: upper half of the receive ring's address.
    ReceiveBaseHigh = 0x2804,
    /// RDLEN 0: length of the receive ring in bytes.
    ReceiveLength = 0x2808,
    /// RDH 0: index of the next descriptor that the device uses.
    ReceiveHead = 0x2810,
    /// RDT 0: index after the last posted descriptor.
    ReceiveTail = 0x2818,
    /// RDTR: delay of receive interrupts.
    ReceiveDelay = 0x2820,
    /// RXDCTL 0: conditions for writing receive descriptors back.
    ReceiveControl = 0x2828,
    /// RADV: maximum delay of receive interrupts.
    ReceiveDelayMost = 0x282c,
    /// RDLEN 1: length of the second receive ring in bytes.
    ReceiveLength1 = 0x2908,
    /// TDBAL 0: lower half of the transmit ring's address.
    TransmitBase = 0x3800,
    /// TDBAH 0: upper half of the transmit ring's address.
    TransmitBaseHigh = 0x3804,
    /// TDLEN 0: length of the transmit ring in bytes.
    TransmitLength = 0x3808,
    /// TDH 0: index of the next descriptor that the device uses.
    TransmitHead = 0x3810,
    /// TDT 0: index after the last posted descriptor.
    TransmitTail = 0x3818,
    /// TXDCTL 0: conditions for writing transmit descriptors back.
    TransmitControl = 0x3828,
    /// TDLEN 1: length of the second transmit ring in bytes.
    TransmitLength1 = 0x3908,
    /// MPC: number of frames lost because no descriptor was posted. A read clears it.
    Missed = 0x4010,
    /// RXCSUM: verification of received checksums.
    ReceiveChecksum = 0x5000,
    /// RFCTL: format of receive descriptors.
    ReceiveFilter = 0x5008,
    /// MRQC: distribution of frames to several queues.
    Queues = 0x5818,
}

/// Access to all registers of a device.
pub trait IntelRegisters: Registers<IntelRegister> + Clone {}

impl<R: Registers<IntelRegister> + Clone> IntelRegisters for R {}

impl IntelRegister {
    /// Returns the part of the window that holds the register, and its offset there.
    #[must_use]
    pub const fn place(self) -> (Structure, usize) {
        let at = self as usize;
        match at.checked_sub(INTEL_QUEUES_AT as usize) {
            Some(at) => (Structure::Notify, at),
            None => (Structure::Common, at),
        }
    }
}

impl RegisterWindow {
    fn intel(&self, register: IntelRegister) -> (Span, usize) {
        match register.place() {
            (Structure::Common, at) => (self.common, at),
            (Structure::Notify, at) => (self.notify, at),
        }
    }
}

impl Registers<IntelRegister> for RegisterWindow {
    fn get(&self, register: IntelRegister) -> Result<u32, Fault> {
        let (span, at) = self.intel(register);
        span.load_u32(at)
    }

    fn set(&self, register: IntelRegister, value: u32) -> Result<(), Fault> {
        let (span, at) = self.intel(register);
        span.store_u32(at, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmem::Area;

    #[test]
    fn registers_lie_in_the_two_parts_of_the_window() {
        let area = Area::anonymous(2 * abi::PAGE).unwrap();
        let window = RegisterWindow {
            common: area.span().take(0x1000),
            notify: area.span().skip(0x1000).take(0x900),
            multiplier: 0,
        };
        for (register, at) in [
            (IntelRegister::Receive, 0x100),
            (IntelRegister::ReceiveTail, 0x1818),
        ] {
            window.set(register, 0x0403_0201).unwrap();
            assert_eq!(window.get(register), Ok(0x0403_0201));
            assert_eq!(area.span().load_u32(at), Ok(0x0403_0201), "{register:?}");
        }
        // These registers lie after the mapped part.
        window.get(IntelRegister::ReceiveLength1).unwrap_err();
        window.set(IntelRegister::Queues, 1).unwrap_err();
    }
}
