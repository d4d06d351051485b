//! A NIC with a device in software, which runs in this process. The driver logs its events.

use nic::dma::{SoftNic, Wire};
use nic::vmq::Vmq;
use nic::{Buffers, Frame, Middleware, Nic as _};
use runtime::start::print_line;

/// The NIC and its name in the log.
#[derive(Debug)]
pub struct SoftPort<W> {
    name: String,
    nic: SoftNic<W>,
}

impl<W> SoftPort<W> {
    /// Creates the port of a NIC with this name.
    #[must_use]
    pub fn new(name: String, nic: SoftNic<W>) -> Self {
        Self { name, nic }
    }
}

impl<W: Wire> Middleware for SoftPort<W> {
    type Inner = SoftNic<W>;

    fn inner(&self) -> &SoftNic<W> {
        &self.nic
    }

    fn inner_mut(&mut self) -> &mut SoftNic<W> {
        &mut self.nic
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let taken = self.nic.rx(now_ns, budget, buffers, out);
        while let Some(event) = self.nic.event() {
            print_line(format_args!("nic.{}: {event}", self.name));
        }
        taken
    }

    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        self.nic.vmq()
    }
}
