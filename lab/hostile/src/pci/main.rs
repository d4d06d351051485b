//! `hostile-pci`: a driver domain that makes its PCI device access memory that is not mapped for
//! the device. Otherwise it behaves like the ordinary driver domain. `cargo xtask vfio` starts it
//! as `driver`.
//!
//! Before each sleep it changes the addresses of all buffers in the device's queues.

use abi::PAGE;
use abi::pci::IO_BASE;
use config::domain::{BUFFER_BYTES, DriverConfig, NicConfig, NicKindConfig};
use hostile::{Attack, with_attack};
use nic::dma::pci::setup::queue_bytes;
use runtime::start::{StartError, Started, main as start, print_line};
use shmem::Span;
use std::cell::Cell;
use std::convert::Infallible;
use std::process::ExitCode;

#[global_allocator]
static HEAP: shmem::arena::Arena<{ 64 << 20 }> = shmem::arena::Arena::new();

/// Physical address of the kernel.
const KERNEL: u64 = 0x100_0000;
/// Bytes of a descriptor and of the address at its start.
const DESCRIPTOR: usize = 16;
const WORD: usize = 8;
/// Maximum number of addresses printed, each on a console line.
const NOTED_MAX: u32 = 20;

fn main() -> ExitCode {
    start(attack)
}

fn attack(started: Started<DriverConfig>) -> Result<Infallible, StartError> {
    let found = started
        .config
        .nics
        .first()
        .and_then(|nic| Target::of(nic, started.domain_memory.frames.span()));
    let target = found.ok_or(StartError::BadStartInfo(
        "the first NIC is not a PCI device",
    ))?;
    driver::run(with_attack(started, target))
}

/// The queues of a device.
#[derive(Debug)]
struct Target {
    descriptors: [Span; 2],
    addresses: [u64; 3],
    /// The number of attacks, which selects the address.
    round: Cell<u32>,
}

impl Target {
    /// Finds the queues of a NIC whose buffers are the first frames of the domain.
    fn of(nic: &NicConfig, frames: Span) -> Option<Self> {
        let NicKindConfig::Vfio { descriptors, .. } = nic.kind else {
            return None;
        };
        let buffers = (nic.settings.buffers * BUFFER_BYTES) as usize;
        let rings = buffers.next_multiple_of(PAGE);
        let queue = queue_bytes(u16::try_from(descriptors).ok()?);
        let table = |at: usize| frames.sub(at, descriptors as usize * DESCRIPTOR);
        let end = rings + nic.ring_pages() as usize * PAGE;
        Some(Self {
            descriptors: [table(rings)?, table(rings + queue)?],
            addresses: [KERNEL, IO_BASE - PAGE as u64, IO_BASE + end as u64],
            round: Cell::new(0),
        })
    }

    /// Changes the addresses of all buffers. Selects the next kind of address if the driver has
    /// posted buffers since the last call.
    fn change_addresses(&self) {
        let words = self.descriptors.iter().flat_map(|table| {
            let places = (0..table.len()).step_by(DESCRIPTOR);
            places.filter_map(|at| table.sub(at, WORD))
        });
        let old = self.address();
        let is_posted = |word: Span| word.load_u64(0).is_ok_and(|now| now != 0 && now != old);
        if !words.clone().any(is_posted) {
            return;
        }
        let round = self.round.get() + 1;
        self.round.set(round);
        let address = self.address();
        if round <= NOTED_MAX {
            print_line(format_args!("attack {round}: address {address:#x}"));
        }
        for word in words {
            let _own = word.store_u64(0, address);
        }
    }

    /// Returns the current address.
    fn address(&self) -> u64 {
        let number = self.round.get() as usize % self.addresses.len();
        self.addresses.get(number).copied().unwrap_or_default()
    }
}

impl Attack for Target {
    fn on_sleep(&self, timeout_ns: Option<u64>) -> Option<u64> {
        self.change_addresses();
        timeout_ns
    }
}
