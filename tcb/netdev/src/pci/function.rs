//! An open PCI device. While no domain has it, its bus master is off, so it accesses no memory.

use super::bus::{NO_RESET, PciError, system};
use super::calls::{self, CONFIG_SPACE};
use super::registers::{CONFIG_BYTES, Registers};
use abi::PAGE;
use abi::core::RingExtent;
use abi::pci::{Structure, StructureLayout};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{pread, pwrite};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Place of the command register.
const COMMAND_AT: u64 = 4;
/// Bits of the command register: the device answers accesses to its registers, and accesses memory.
const MEMORY: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;

/// An open device.
#[derive(Debug)]
pub struct Function {
    container: OwnedFd,
    group: OwnedFd,
    device: OwnedFd,
    registers: Registers,
    /// Place of the configuration space in the device's descriptor.
    config_at: u64,
    /// The first page of each structure in the device's descriptor.
    pages: [u32; Structure::ALL.len()],
    address: String,
    /// Whether it was stopped, and not started since.
    is_stopped: AtomicBool,
    /// The number of times that it was started, at least.
    starts: AtomicU64,
}

impl Function {
    /// Opens the device at `address` of a group, and gives the container an I/O page table. Nothing
    /// is mapped in it yet.
    ///
    /// # Errors
    /// The group has a device in use, the device cannot be reset or has no suitable registers, or
    /// the system refused.
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
        opened.starts.store(0, Ordering::Relaxed);
        Ok(opened)
    }

    /// Adopts a device that another process has opened, and probably started.
    ///
    /// # Errors
    /// The device has no suitable registers, or the system refused.
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
            is_stopped: AtomicBool::new(false),
            starts: AtomicU64::new(1),
        })
    }

    /// Returns the descriptors that another process needs to adopt it: container, group, device.
    #[must_use]
    pub fn kept(&self) -> [BorrowedFd<'_>; 3] {
        [&self.container, &self.group, &self.device].map(AsFd::as_fd)
    }

    /// Returns the descriptor of its container.
    #[must_use]
    pub fn container(&self) -> BorrowedFd<'_> {
        self.container.as_fd()
    }

    /// Returns the descriptor of the device, which shows its registers.
    #[must_use]
    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Returns the pages of its structures.
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

    /// Returns where a structure lies in its pages.
    #[must_use]
    pub fn layout(&self, structure: Structure) -> StructureLayout {
        let range = self.registers.range(structure);
        StructureLayout {
            offset: (range.offset % PAGE as u32) as u16,
            bytes: range.bytes,
        }
    }

    /// Returns the bytes between the notification addresses of two queues.
    #[must_use]
    pub fn notify_multiplier(&self) -> u32 {
        self.registers.multiplier
    }

    /// Returns whether it was started more than once, so that another domain has had it.
    #[must_use]
    pub fn has_served(&self) -> bool {
        self.starts.load(Ordering::Relaxed) > 1
    }

    /// Starts the device: from now on it may access the memory that is mapped for it. Returns the
    /// descriptor that reports its interrupts.
    ///
    /// # Errors
    /// The system refused; the device is stopped.
    pub fn start(&self) -> Result<OwnedFd, PciError> {
        self.is_stopped.store(false, Ordering::Relaxed);
        self.starts.fetch_add(1, Ordering::Relaxed);
        let start = || {
            let interrupt = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            calls::set_interrupt(&self.device, Some(&interrupt))?;
            self.set_command(MEMORY | BUS_MASTER, 0)?;
            Ok(interrupt)
        };
        start().map_err(system(&self.address, "starting it"))
    }

    /// Stops the device and resets it, unless it is stopped: it accesses no memory when this
    /// returns.
    ///
    /// # Errors
    /// The system refused; the device may be running.
    pub fn stop(&self) -> Result<(), PciError> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        let stop = || {
            self.set_command(0, BUS_MASTER)?;
            // Fails if no interrupt was set.
            let _ = calls::set_interrupt(&self.device, None);
            calls::reset(&self.device)?;
            // A reset restores the command register; this makes sure of it.
            self.set_command(0, BUS_MASTER)
        };
        stop().map_err(system(&self.address, "stopping it"))?;
        self.is_stopped.store(true, Ordering::Relaxed);
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
