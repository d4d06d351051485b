//! A virtual machine that this domain serves over vhost-user.

use runtime::device::attach;
use runtime::platform::Platform;
use runtime::start::{StartError, print_line};
use shmem::Span;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use vhost_edge::{ConnectionSource, Offer, QueueDevice, VhostBackend, VhostSystem};

/// The domain's system, as the vhost-user back end uses it.
#[derive(Debug)]
pub struct DomainSystem(Rc<dyn Platform>);

impl VhostSystem for DomainSystem {
    fn map(&mut self, file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<Span> {
        self.0.map_region(file, offset, bytes)
    }

    fn unmap(&mut self, region: Span) {
        // The call fails only for a region that is not mapped.
        let _ = self.0.unmap_region(region);
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, edges: bool) -> io::Result<()> {
        self.0.watch(fd, edges)
    }

    fn unwatch(&mut self, fd: BorrowedFd<'_>) {
        let _ = self.0.unwatch(fd);
    }
}

/// Returns the devices, one for each of the interface's queues, of a virtual machine whose monitor
/// connects to the socket `device`. With `client`, the manager sends the connections over that
/// socket instead.
///
/// # Errors
/// Returns an error if the device was rejected.
pub fn ports(
    platform: &Rc<dyn Platform>,
    device: u32,
    client: bool,
    offer: Offer,
    queues: usize,
) -> Result<Vec<QueueDevice<DomainSystem>>, StartError> {
    let socket = attach(&**platform, device)?;
    let source = match client {
        false => ConnectionSource::Listener(socket),
        true => ConnectionSource::Manager(socket),
    };
    let system = DomainSystem(Rc::clone(platform));
    let backend = VhostBackend::new(system, source, offer, print_line);
    Ok(QueueDevice::all(backend, queues))
}
