//! An open PCI device. While no domain has the device, its bus master bit is off, so it accesses no
//! memory.

use super::bus::{NO_RESET, PciError, system};
use super::calls::{self, CONFIG_SPACE};
use super::registers::{CONFIG_BYTES, Registers};
use abi::PAGE;
use abi::core::RingExtent;
use abi::pci::{PciKind, Structure, StructureLayout};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{pread, pwrite};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Offset of the command register in the configuration space.
const COMMAND_AT: u64 = 4;
/// Bits of the command register: the device responds to accesses to its registers, and may access
/// memory.
const MEMORY: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;

/// An open device.
#[derive(Debug)]
pub struct Function {
    container: OwnedFd,
    group: OwnedFd,
    device: OwnedFd,
    registers: Registers,
    /// Offset of the configuration space in the device's descriptor.
    config_at: u64,
    /// The first page of each structure in the device's descriptor.
    pages: [u32; Structure::ALL.len()],
    address: String,
    /// Locked while the device is started or stopped.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Whether the device was stopped and not started since.
    is_stopped: bool,
    /// Lower bound of the number of starts, and the number of the last start.
    starts: u64,
}

impl Function {
    /// Opens the device at `address` of a group, and adds an empty I/O page table to the container.
    ///
    /// # Errors
    /// Returns an error if the group has a device in use, the device cannot be reset or has no
    /// suitable registers, or the system rejects a call.
    pub fn open(container: OwnedFd, group: OwnedFd, address: &str) -> Result<Self, PciError> {
        let unusable = |what| PciError::Unusable {
            address: address.to_owned(),
            what,
        };
        let status = system(address, "reading the state of its IOMMU group");
        if !calls::is_viable(&group).map_err(status)? {
            return Err(unusable("another device of its IOMMU group is in use"));
        }
        let joined = calls::join(&group, &container);
        joined.map_err(system(address, "giving it an I/O page table"))?;
        let device = calls::open_device(&group, address);
        let device = device.map_err(system(address, "opening it"))?;
        if !calls::has_reset(&device).map_err(system(address, "reading its features"))? {
            return Err(unusable(NO_RESET));
        }
        let opened = Self::adopt(container, group, device, address)?;
        opened.lock().starts = 0;
        Ok(opened)
    }

    /// Adopts a device that another process has opened, and probably started.
    ///
    /// # Errors
    /// Returns an error if the device has no suitable registers, or the system rejects a call.
    pub fn adopt(
        container: OwnedFd,
        group: OwnedFd,
        device: OwnedFd,
        address: &str,
    ) -> Result<Self, PciError> {
        let refused = |what| system(address, what);
        let unusable = |what| PciError::Unusable {
            address: address.to_owned(),
            what,
        };
        let space = calls::region(&device, CONFIG_SPACE);
        let config_at = space.map_err(refused("finding its configuration"))?.offset;
        let mut config = [0; CONFIG_BYTES];
        let read = pread(&device, &mut config, config_at).map_err(io::Error::from);
        read.map_err(refused("reading its configuration"))?;
        let registers = Registers::find(&config).map_err(unusable)?;
        let mut pages = [0; Structure::ALL.len()];
        for (page, structure) in pages.iter_mut().zip(Structure::ALL) {
            let range = registers.range(structure);
            let bar = calls::region(&device, range.bar.into());
            let bar = bar.map_err(refused("finding its registers"))?;
            let end = range.pages().end * PAGE as u64;
            if !bar.has_mmap() || end > bar.bytes.next_multiple_of(PAGE as u64) {
                return Err(unusable("its registers cannot be mapped"));
            }
            let first = bar.offset / PAGE as u64 + range.pages().start;
            *page = u32::try_from(first)
                .map_err(|_| unusable("its registers lie beyond the range that can be mapped"))?;
        }
        Ok(Self {
            container,
            group,
            device,
            registers,
            config_at,
            pages,
            address: address.to_owned(),
            state: Mutex::new(State {
                is_stopped: false,
                starts: 1,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptors that another process needs to adopt it: container, group, device.
    #[must_use]
    pub fn adoption_fds(&self) -> [BorrowedFd<'_>; 3] {
        [&self.container, &self.group, &self.device].map(AsFd::as_fd)
    }

    /// Returns the descriptor of the device's container.
    #[must_use]
    pub fn container(&self) -> BorrowedFd<'_> {
        self.container.as_fd()
    }

    /// Returns the descriptor of the device, through which its registers can be mapped.
    #[must_use]
    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Returns the pages of the device's structures.
    #[must_use]
    pub fn extents(&self) -> [RingExtent; Structure::ALL.len()] {
        std::array::from_fn(|at| {
            let range = self.registers.range(Structure::ALL[at]);
            let pages = range.pages();
            RingExtent {
                page: self.pages[at],
                pages: (pages.end - pages.start) as u32,
            }
        })
    }

    /// Returns the position of a structure within its pages.
    #[must_use]
    pub fn layout(&self, structure: Structure) -> StructureLayout {
        let range = self.registers.range(structure);
        StructureLayout {
            offset: (range.offset % PAGE as u32) as u16,
            bytes: range.bytes,
        }
    }

    /// Returns the kind of the device.
    #[must_use]
    pub fn kind(&self) -> PciKind {
        self.registers.kind
    }

    /// Returns the distance between the notification addresses of two queues, in bytes.
    #[must_use]
    pub fn notify_multiplier(&self) -> u32 {
        self.registers.multiplier
    }

    /// Returns whether the device was started more than once, so that another domain has used it.
    #[must_use]
    pub fn has_served(&self) -> bool {
        self.lock().starts > 1
    }

    /// Starts the device, which may then access the memory that is mapped for it. Returns the
    /// descriptor that reports its interrupts, and the number of this start.
    ///
    /// # Errors
    /// Returns an error if the system rejects a call. The device then accesses no memory.
    pub fn start(&self) -> Result<(OwnedFd, u64), PciError> {
        let mut state = self.lock();
        state.is_stopped = false;
        state.starts += 1;
        let start = || {
            let interrupt = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            calls::set_interrupt(&self.device, Some(&interrupt))?;
            self.set_command(MEMORY | BUS_MASTER, 0)?;
            Ok(interrupt)
        };
        let interrupt = start().map_err(system(&self.address, "starting it"))?;
        Ok((interrupt, state.starts))
    }

    /// Adopts a start by another process, and returns its number. The caller adopts starts in
    /// order.
    #[must_use]
    pub fn adopt_start(&self) -> u64 {
        let mut state = self.lock();
        state.starts += 1;
        state.starts
    }

    /// Stops and resets the device. It accesses no memory when this function returns.
    ///
    /// Also resets a stopped device, because its previous domain can write to the registers until
    /// the domain has exited.
    ///
    /// # Errors
    /// Returns an error if the system rejects a call. The device may then be running.
    pub fn stop(&self) -> Result<(), PciError> {
        self.stop_locked(&mut self.lock())
    }

    /// Stops the device like [`Function::stop`], unless it is stopped already.
    ///
    /// # Errors
    /// Returns the errors of [`Function::stop`].
    pub fn stop_running(&self) -> Result<(), PciError> {
        let mut state = self.lock();
        match state.is_stopped {
            true => Ok(()),
            false => self.stop_locked(&mut state),
        }
    }

    /// Stops the device like [`Function::stop`], unless it was stopped or started again after the
    /// start with number `start`.
    ///
    /// # Errors
    /// Returns the errors of [`Function::stop`].
    pub fn end(&self, start: u64) -> Result<(), PciError> {
        let mut state = self.lock();
        match state.is_stopped || state.starts != start {
            true => Ok(()),
            false => self.stop_locked(&mut state),
        }
    }

    fn stop_locked(&self, state: &mut State) -> Result<(), PciError> {
        let stop = || {
            self.set_command(0, BUS_MASTER)?;
            // This call fails if no interrupt was set.
            let _ = calls::set_interrupt(&self.device, None);
            calls::reset(&self.device)?;
            // A reset restores the command register, so the bit is cleared again.
            self.set_command(0, BUS_MASTER)
        };
        stop().map_err(system(&self.address, "stopping it"))?;
        state.is_stopped = true;
        Ok(())
    }

    fn set_command(&self, set: u16, clear: u16) -> io::Result<()> {
        let at = self.config_at + COMMAND_AT;
        let mut bytes = [0; 2];
        if pread(&self.device, &mut bytes, at)? != bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let command = u16::from_le_bytes(bytes) & !clear | set;
        match pwrite(&self.device, &command.to_le_bytes(), at)? {
            2 => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::registers::BarRange;
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// Returns a device that consists of a file, with the bus master bit set. The system cannot
    /// reset it.
    fn function() -> Function {
        let file = tempfile::tempfile().unwrap();
        let fd = || OwnedFd::from(file.try_clone().unwrap());
        let range = BarRange {
            bar: 0,
            offset: 0,
            bytes: 0,
        };
        let function = Function {
            container: fd(),
            group: fd(),
            device: fd(),
            registers: Registers {
                kind: PciKind::VirtioNet,
                common: range,
                notify: range,
                multiplier: 0,
            },
            config_at: 0,
            pages: [0; Structure::ALL.len()],
            address: "0000:00:03.0".to_owned(),
            state: Mutex::new(State {
                is_stopped: false,
                starts: 1,
            }),
        };
        file.set_len(CONFIG_BYTES as u64).unwrap();
        function.set_command(MEMORY | BUS_MASTER, 0).unwrap();
        function
    }

    fn command(function: &Function) -> u16 {
        let mut bytes = [0; 2];
        let file = File::from(function.device.try_clone().unwrap());
        file.read_exact_at(&mut bytes, COMMAND_AT).unwrap();
        u16::from_le_bytes(bytes)
    }

    /// The previous domain may have changed the registers after the device was stopped.
    #[test]
    fn stopped_device_is_reset_before_the_next_start() {
        let function = function();
        function.lock().is_stopped = true;
        function.stop_running().unwrap();
        assert_eq!(command(&function), MEMORY | BUS_MASTER);
        function.stop().unwrap_err();
        assert_eq!(command(&function), MEMORY);
    }

    #[test]
    fn device_of_a_later_domain_is_not_ended() {
        let function = function();
        let (first, second) = (function.adopt_start(), function.adopt_start());
        function.end(first).unwrap();
        assert_eq!(command(&function), MEMORY | BUS_MASTER);
        function.end(second).unwrap_err();
        assert_eq!(command(&function), MEMORY);
        function.lock().is_stopped = true;
        function.end(second).unwrap();
    }
}
