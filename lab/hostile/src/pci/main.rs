//! `hostile-pci`: a driver domain that makes its PCI device access memory that is not mapped for
//! the device. Otherwise it behaves like the ordinary driver domain. `cargo xtask vfio` starts it
//! as `driver`.
//!
//! Before each sleep it changes the addresses of all buffers in the device's queues.

use abi::pci::IO_BASE;
use abi::{ConnId, PAGE};
use config::domain::{BUFFER_BYTES, DriverConfig, NicConfig, NicKindConfig};
use nic::dma::pci::setup::queue_bytes;
use runtime::platform::{PendingWork, Wait, WakeSource};
use runtime::start::{StartError, Started, main as start, print_line};
use shmem::Span;
use std::cell::Cell;
use std::convert::Infallible;
use std::io;
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
    let Started {
        domain_memory,
        platform,
        calls,
        waiter,
        config,
    } = started;
    let found = config
        .nics
        .first()
        .and_then(|nic| Target::of(nic, domain_memory.frames.span()));
    let target = found.ok_or(StartError::BadStartInfo(
        "the first NIC is not a PCI device",
    ))?;
    driver::run(Started {
        domain_memory,
        platform,
        calls,
        waiter: Attacker { waiter, target },
        config,
    })
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
    fn attack(&self) {
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

/// The waiter of a domain, which attacks before each sleep.
#[derive(Debug)]
struct Attacker<W> {
    waiter: W,
    target: Target,
}

impl<W: Wait> Wait for Attacker<W> {
    fn pending(&self) -> PendingWork {
        self.waiter.pending()
    }

    fn has_changed(&self, conn: ConnId) -> bool {
        self.waiter.has_changed(conn)
    }

    fn has_pending(&self) -> bool {
        self.waiter.has_pending()
    }

    fn heartbeat(&self) {
        self.waiter.heartbeat();
    }

    fn arm(&self) {
        self.waiter.arm();
    }

    fn fence(&self) {
        self.waiter.fence();
    }

    fn disarm(&self) {
        self.waiter.disarm();
    }

    fn sleep(&self, bell: WakeSource, timeout_ns: Option<u64>) -> io::Result<()> {
        self.target.attack();
        self.waiter.sleep(bell, timeout_ns)
    }
}
