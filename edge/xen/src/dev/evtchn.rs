//! Event channels: `/dev/xen/evtchn`.

use super::{ioctl, open, request};
use crate::tally::{Hypercall, Tally};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

/// `IOCTL_EVTCHN_BIND_INTERDOMAIN`.
const BIND_INTERDOMAIN: libc::Ioctl = request(b'E', 1, size_of::<BindInterdomain>());
/// `IOCTL_EVTCHN_UNBIND`.
const UNBIND: libc::Ioctl = request(b'E', 3, size_of::<PortArgument>());
/// `IOCTL_EVTCHN_NOTIFY`.
const NOTIFY: libc::Ioctl = request(b'E', 4, size_of::<PortArgument>());

/// All of them.
pub const EVTCHN_REQUESTS: [u64; 3] = [BIND_INTERDOMAIN, UNBIND, NOTIFY];

/// Ports that one read reports; what is left is reported by the next.
const PORTS: usize = 512;

#[repr(C)]
struct BindInterdomain {
    remote_domain: u32,
    remote_port: u32,
}

#[repr(C)]
struct PortArgument {
    port: u32,
}

/// The device.
#[derive(Debug)]
pub struct Evtchn {
    device: File,
    tally: Arc<Tally>,
}

impl Evtchn {
    /// Opens it; notifications are counted in `tally`. No channel is bound.
    ///
    /// # Errors
    /// It is not there, or not for us.
    pub fn open(tally: Arc<Tally>) -> io::Result<Self> {
        let device = open("/dev/xen/evtchn", libc::O_NONBLOCK)?;
        Ok(Self { device, tally })
    }

    /// Binds to a port that domain `domain` offers. The port's other end may have been another
    /// process of this domain: when that closed it, Xen offered it anew.
    ///
    /// # Errors
    /// There is no such domain, or it offers no such port to this one.
    pub fn bind(self: &Rc<Self>, domain: u16, remote_port: u32) -> io::Result<Port> {
        let mut argument = BindInterdomain {
            remote_domain: domain.into(),
            remote_port,
        };
        // SAFETY: the structure of this request; it points at nothing.
        let port = unsafe { ioctl(&self.device, BIND_INTERDOMAIN, &mut argument)? };
        Ok(Port {
            device: Rc::clone(self),
            port: port as u32,
        })
    }

    /// Takes the events that have come, once each, and lets further ones come. A guest that
    /// notifies all the time has the next one there at once: it must not keep this end here.
    pub fn take(&self) {
        let mut ports = [0; PORTS * 4];
        let bytes = (&self.device).read(&mut ports).unwrap_or(0);
        if let Some(took) = ports.get(..bytes).filter(|took| !took.is_empty()) {
            // What is written back is unmasked. A port that was unbound meanwhile is refused: that
            // is one event less to wait for.
            let _ = (&self.device).write(took);
        }
    }
}

impl AsFd for Evtchn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// One end of an event channel; unbound when it is dropped.
#[derive(Debug)]
pub struct Port {
    device: Rc<Evtchn>,
    port: u32,
}

impl Port {
    /// Notifies the other end. There is nothing to be done if that is no more.
    pub fn notify(&self) {
        let mut argument = PortArgument { port: self.port };
        self.device.tally.count(Hypercall::Notify, 1, 1);
        // SAFETY: the structure of this request; it points at nothing.
        let _ = unsafe { ioctl(&self.device.device, NOTIFY, &mut argument) };
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut argument = PortArgument { port: self.port };
        // SAFETY: the structure of this request; it points at nothing.
        let _ = unsafe { ioctl(&self.device.device, UNBIND, &mut argument) };
    }
}
