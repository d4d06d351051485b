//! A NIC whose device is a PCI device behind an IOMMU. The monitor has mapped its registers and its
//! memory; its interrupt is an eventfd.

use crate::xdp::ask;
use abi::pci::{IO_BASE, PciControl, Structure, StructureLayout};
use abi::{PAGE, pci};
use nic::dma::IoAddr;
use nic::dma::pci::{PciNic, PciSetup, Window};
use nic::{Buffers, Frame, Middleware, Nic as _};
use runtime::device::attach;
use runtime::platform::Platform;
use runtime::start::{StartError, print_line, refused};
use shmem::{Area, Span};
use std::fs::File;
use std::io::{self, Read};

/// The NIC, and the descriptor of its interrupt.
#[derive(Debug)]
pub struct PciPort {
    name: String,
    nic: PciNic<Window>,
    interrupt: File,
    is_reported: bool,
}

/// Returns the properties of a NIC with queues of `descriptors` entries.
pub fn setup(descriptors: u32, mtu: usize) -> PciSetup {
    PciSetup {
        entries: u16::try_from(descriptors).unwrap_or(u16::MAX),
        mtu,
        base: IoAddr::from_bits(IO_BASE),
    }
}

impl PciPort {
    /// Starts a device. `place` is its number, and the first slot of its registers; `memory` are
    /// the areas of its pool and of its queues, in the order of their I/O addresses.
    ///
    /// # Errors
    /// The monitor has mapped no registers, or the device cannot be used.
    pub fn start(
        name: String,
        (device, slot): (u32, u32),
        setup: PciSetup,
        memory: [Area; 2],
        platform: &dyn Platform,
    ) -> Result<Self, StartError> {
        let interrupt = File::from(attach(platform, device)?);
        let what = "the registers of a PCI device";
        let multiplier = ask(
            what,
            device,
            PciControl::NotifyMultiplier.encode(),
            platform,
        )?;
        let window = |structure| {
            let word = ask(
                what,
                device,
                PciControl::Layout(structure).encode(),
                platform,
            )?;
            let place = registers(
                structure.slot(slot),
                StructureLayout::decode(word),
                platform,
            );
            place.ok_or(StartError::Damaged("a PCI device's registers do not fit"))
        };
        let window = Window {
            common: window(Structure::Common)?,
            notify: window(Structure::Notify)?,
            multiplier: multiplier as u32,
        };
        let [pool, queues] = memory;
        let nic = PciNic::start(setup, window, pool, queues);
        let nic = nic.map_err(|why| refused(&format!("nic.{name}"), io::Error::other(why)))?;
        Ok(Self {
            name,
            nic,
            interrupt,
            is_reported: false,
        })
    }
}

/// Returns the place of a structure of registers in the window.
fn registers(slot: u32, layout: StructureLayout, platform: &dyn Platform) -> Option<Span> {
    let slots = platform.window();
    let slots = slots.at(slot as usize * PAGE, pci::WINDOW_SLOTS as usize * PAGE)?;
    slots.sub(layout.offset.into(), layout.bytes as usize)
}

impl Middleware for PciPort {
    type Inner = PciNic<Window>;

    fn inner(&self) -> &PciNic<Window> {
        &self.nic
    }

    fn inner_mut(&mut self) -> &mut PciNic<Window> {
        &mut self.nic
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        // Without an interrupt, the eventfd has nothing to read.
        let _ = self.interrupt.read(&mut [0; 8]);
        let taken = self.nic.rx(now_ns, budget, buffers, out);
        if let Some(error) = self.nic.closed()
            && !self.is_reported
        {
            self.is_reported = true;
            let name = &self.name;
            print_line(format_args!("nic.{name}: {error}; the NIC is closed"));
        }
        taken
    }
}
