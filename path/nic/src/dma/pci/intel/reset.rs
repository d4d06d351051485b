//! The reset of a device. It is polled, because it takes milliseconds, in which the driver domain
//! serves its other NICs.

use super::registers::{IntelRegister, IntelRegisters, REMOVED};
use crate::dma::pci::device::{RESET_NS, StartupError};
use shmem::Fault;
use shmem::time::monotonic_ns;

/// Bit of RCTL and TCTL.
pub(super) const ENABLE: u32 = 1 << 1;
/// Bits of CTRL: no memory requests; reset.
const MASTER_DISABLE: u32 = 1 << 2;
pub(super) const RESET: u32 = 1 << 26;
/// Bit of STATUS: the device may access memory.
const MASTER_ENABLED: u32 = 1 << 19;

/// Bit of CTRL: the link is up.
const LINK_UP: u32 = 1 << 6;
/// Bits of CTRL: reset of the link; inverted loss of signal; forced speed and duplex; VLAN tags in
/// descriptors; reset of the PHY. Auto-negotiation chooses speed and duplex.
const LINK_OPTIONS: u32 = 1 << 3 | 1 << 7 | 1 << 11 | 1 << 12 | 1 << 30 | 1 << 31;
/// Bit of EEC: the settings were read from the non-volatile memory.
const SETTINGS_READ: u32 = 1 << 9;
/// How long after the start of a reset no register is accessed.
const PAUSE_NS: u64 = 10_000;

/// Progress of a reset. Each wait has its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IntelReset {
    /// The reset has not begun.
    #[default]
    Begins,
    /// The device has memory requests without an answer.
    Requests(u64),
    /// No register may be accessed.
    Pause(u64),
    /// The device resets itself.
    Resets(u64),
    /// The device reads its settings.
    Settings(u64),
}

impl IntelReset {
    /// Takes all steps that need no wait. Returns whether the device is reset and its link enabled.
    /// The non-volatile memory is not written.
    pub(super) fn advance(
        &mut self,
        registers: &impl IntelRegisters,
        now_ns: u64,
    ) -> Result<bool, StartupError> {
        let until_ns = now_ns.saturating_add(RESET_NS);
        loop {
            *self = match *self {
                Self::Begins => {
                    if registers.get(IntelRegister::Control)? == REMOVED {
                        return Err(StartupError::Registers);
                    }
                    silence(registers)?;
                    stop_requests(registers)?;
                    Self::Requests(until_ns)
                }
                // A device that has requests for too long is reset nevertheless.
                Self::Requests(until_ns) => {
                    if !is_idle(registers)? && now_ns < until_ns {
                        return Ok(false);
                    }
                    change(registers, IntelRegister::Control, 0, RESET)?;
                    Self::Pause(now_ns.saturating_add(PAUSE_NS))
                }
                Self::Pause(end_ns) if now_ns < end_ns => return Ok(false),
                Self::Pause(_) => Self::Resets(until_ns),
                Self::Resets(until_ns) => {
                    if registers.get(IntelRegister::Control)? & RESET != 0 {
                        return in_time(now_ns, until_ns);
                    }
                    Self::Settings(now_ns.saturating_add(RESET_NS))
                }
                Self::Settings(until_ns) => {
                    if registers.get(IntelRegister::Nvm)? & SETTINGS_READ == 0 {
                        return in_time(now_ns, until_ns);
                    }
                    finish(registers)?;
                    *self = Self::Begins;
                    return Ok(true);
                }
            }
        }
    }
}

/// Returns that a reset is not complete, or fails if it takes too long.
fn in_time(now_ns: u64, until_ns: u64) -> Result<bool, StartupError> {
    match now_ns < until_ns {
        true => Ok(false),
        false => Err(StartupError::Reset),
    }
}

/// Prepares a device that has reset itself.
fn finish(registers: &impl IntelRegisters) -> Result<(), Fault> {
    silence(registers)?;
    registers.get(IntelRegister::Causes)?;
    let clear = LINK_OPTIONS | MASTER_DISABLE;
    change(registers, IntelRegister::Control, clear, LINK_UP)
}

/// Stops receiving, sending and interrupts.
pub(super) fn silence(registers: &impl IntelRegisters) -> Result<(), Fault> {
    registers.set(IntelRegister::CausesDisable, u32::MAX)?;
    registers.set(IntelRegister::Receive, 0)?;
    change(registers, IntelRegister::Transmit, ENABLE, 0)
}

/// Clears and sets bits of a register.
pub(super) fn change(
    registers: &impl IntelRegisters,
    register: IntelRegister,
    clear: u32,
    set: u32,
) -> Result<(), Fault> {
    let value = registers.get(register)? & !clear | set;
    registers.set(register, value)
}

/// Tells a device to make no more memory requests.
pub(super) fn stop_requests(registers: &impl IntelRegisters) -> Result<(), Fault> {
    change(registers, IntelRegister::Control, 0, MASTER_DISABLE)
}

/// Returns whether a device has answers to all of its memory requests.
fn is_idle(registers: &impl IntelRegisters) -> Result<bool, Fault> {
    Ok(registers.get(IntelRegister::Status)? & MASTER_ENABLED == 0)
}

/// Waits for the answers to a device's memory requests, at most for a given time.
pub(super) fn wait_until_idle(registers: &impl IntelRegisters) -> Result<(), Fault> {
    let until_ns = monotonic_ns().saturating_add(RESET_NS);
    while !is_idle(registers)? && monotonic_ns() < until_ns {
        std::thread::yield_now();
    }
    Ok(())
}
