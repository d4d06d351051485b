//! The reset of a device. The driver polls its progress, because a reset takes milliseconds and the
//! driver domain serves its other NICs during this time.

use super::registers::{IntelRegister, IntelRegisters, REMOVED};
use crate::dma::pci::device::{RESET_NS, StartupError};
use shmem::Fault;
use shmem::time::monotonic_ns;

/// Bit of RCTL and TCTL: enables the receiver or transmitter.
pub(super) const ENABLE: u32 = 1 << 1;
/// Bits of CTRL: disable memory requests (2), and reset (26).
const MASTER_DISABLE: u32 = 1 << 2;
pub(super) const RESET: u32 = 1 << 26;
/// Bit of STATUS: the device may access memory.
const MASTER_ENABLED: u32 = 1 << 19;

/// Bit of CTRL: the link is up.
const LINK_UP: u32 = 1 << 6;
/// Bits of CTRL that must be clear: link reset, inverted loss of signal, forced speed, forced
/// duplex, VLAN tags in descriptors, PHY reset. Auto-negotiation then selects speed and duplex.
const LINK_OPTIONS: u32 = 1 << 3 | 1 << 7 | 1 << 11 | 1 << 12 | 1 << 30 | 1 << 31;
/// Bit of EEC: the device has read its settings from the non-volatile memory.
const SETTINGS_READ: u32 = 1 << 9;
/// Time after the start of a reset during which the driver accesses no register.
const PAUSE_NS: u64 = 10_000;

/// Progress of a reset. Each waiting state contains the time at which it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IntelReset {
    /// The reset has not begun.
    #[default]
    Start,
    /// The driver waits until the device's memory requests complete.
    Requests(u64),
    /// The driver must not access registers.
    Pause(u64),
    /// The device resets itself.
    Resetting(u64),
    /// The device reads its settings.
    Settings(u64),
}

impl IntelReset {
    /// Performs all steps up to the next wait. Returns whether the device is reset and its link
    /// enabled. Does not write the non-volatile memory.
    pub(super) fn advance(
        &mut self,
        registers: &impl IntelRegisters,
        now_ns: u64,
    ) -> Result<bool, StartupError> {
        let until_ns = now_ns.saturating_add(RESET_NS);
        loop {
            *self = match *self {
                Self::Start => {
                    if registers.get(IntelRegister::Control)? == REMOVED {
                        return Err(StartupError::Registers);
                    }
                    disable(registers)?;
                    stop_requests(registers)?;
                    Self::Requests(until_ns)
                }
                // The driver resets the device after the time limit, even if requests are pending.
                Self::Requests(until_ns) => {
                    if !is_idle(registers)? && now_ns < until_ns {
                        return Ok(false);
                    }
                    modify_bits(registers, IntelRegister::Control, 0, RESET)?;
                    Self::Pause(now_ns.saturating_add(PAUSE_NS))
                }
                Self::Pause(end_ns) if now_ns < end_ns => return Ok(false),
                Self::Pause(_) => Self::Resetting(until_ns),
                Self::Resetting(until_ns) => {
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
                    *self = Self::Start;
                    return Ok(true);
                }
            }
        }
    }
}

/// Returns `Ok(false)` for an incomplete reset, or an error if the time limit has passed.
fn in_time(now_ns: u64, until_ns: u64) -> Result<bool, StartupError> {
    match now_ns < until_ns {
        true => Ok(false),
        false => Err(StartupError::Reset),
    }
}

/// Prepares a device after its reset.
fn finish(registers: &impl IntelRegisters) -> Result<(), Fault> {
    disable(registers)?;
    registers.get(IntelRegister::Causes)?;
    let clear = LINK_OPTIONS | MASTER_DISABLE;
    modify_bits(registers, IntelRegister::Control, clear, LINK_UP)
}

/// Stops receiving, sending and interrupts.
pub(super) fn disable(registers: &impl IntelRegisters) -> Result<(), Fault> {
    registers.set(IntelRegister::CausesDisable, u32::MAX)?;
    registers.set(IntelRegister::Receive, 0)?;
    modify_bits(registers, IntelRegister::Transmit, ENABLE, 0)
}

/// Clears the bits `clear` and sets the bits `set` of a register.
pub(super) fn modify_bits(
    registers: &impl IntelRegisters,
    register: IntelRegister,
    clear: u32,
    set: u32,
) -> Result<(), Fault> {
    let value = registers.get(register)? & !clear | set;
    registers.set(register, value)
}

/// Disables new memory requests of a device.
pub(super) fn stop_requests(registers: &impl IntelRegisters) -> Result<(), Fault> {
    modify_bits(registers, IntelRegister::Control, 0, MASTER_DISABLE)
}

/// Returns whether all memory requests of a device are complete.
fn is_idle(registers: &impl IntelRegisters) -> Result<bool, Fault> {
    Ok(registers.get(IntelRegister::Status)? & MASTER_ENABLED == 0)
}

/// Waits until a device's memory requests are complete, up to [`RESET_NS`].
pub(super) fn wait_until_idle(registers: &impl IntelRegisters) -> Result<(), Fault> {
    let until_ns = monotonic_ns().saturating_add(RESET_NS);
    while !is_idle(registers)? && monotonic_ns() < until_ns {
        std::thread::yield_now();
    }
    Ok(())
}
