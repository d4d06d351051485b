//! Event channels: `/dev/xen/evtchn`.

use super::{ioctl, open, request};
use crate::hypercall_counters::{Hypercall, HypercallCounters};
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

/// All requests of the device.
pub const EVTCHN_REQUESTS: [u64; 3] = [BIND_INTERDOMAIN, UNBIND, NOTIFY];

/// Maximum number of ports that one read reports. The next read reports the rest.
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
    tally: Arc<HypercallCounters>,
}

impl Evtchn {
    /// Opens the device, without binding a channel. Counts notifications in `hypercall_counters`.
    ///
    /// # Errors
    ///
    /// Returns an error if the device does not exist or is inaccessible.
    pub fn open(tally: Arc<HypercallCounters>) -> io::Result<Self> {
        let device = open("/dev/xen/evtchn", libc::O_NONBLOCK)?;
        Ok(Self { device, tally })
    }

    /// Binds to a port that domain `domain` offers. An earlier process of this domain may have been
    /// bound to it: when that process closed its end, Xen offered the port again.
    ///
    /// # Errors
    ///
    /// Returns an error if the domain does not exist or does not offer this port to this domain.
    pub fn bind(self: &Rc<Self>, domain: u16, remote_port: u32) -> io::Result<EvtchnPort> {
        let mut argument = BindInterdomain {
            remote_domain: domain.into(),
            remote_port,
        };
        // SAFETY: this is the structure of the request, and it contains no pointer.
        let port = unsafe { ioctl(&self.device, BIND_INTERDOMAIN, &mut argument)? };
        Ok(EvtchnPort {
            device: Rc::clone(self),
            port: port as u32,
        })
    }

    /// Takes the pending events, each once, and re-enables further ones. Reads only once: a guest
    /// that notifies continuously would otherwise keep the driver here.
    pub fn take(&self) {
        let mut ports = [0; PORTS * 4];
        let bytes = (&self.device).read(&mut ports).unwrap_or(0);
        if let Some(took) = ports.get(..bytes).filter(|took| !took.is_empty()) {
            // Writing the ports back unmasks them. The kernel rejects a port that has been unbound
            // meanwhile. That is harmless, because no event of such a port is expected.
            let _ = (&self.device).write(took);
        }
    }
}

impl AsFd for Evtchn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// One end of an event channel. Dropping it unbinds it.
#[derive(Debug)]
pub struct EvtchnPort {
    device: Rc<Evtchn>,
    port: u32,
}

impl EvtchnPort {
    /// Notifies the other end. Has no effect if the other end no longer exists.
    pub fn notify(&self) {
        let mut argument = PortArgument { port: self.port };
        self.device.tally.count(Hypercall::Notify, 1, 1);
        // SAFETY: this is the structure of the request, and it contains no pointer.
        let _ = unsafe { ioctl(&self.device.device, NOTIFY, &mut argument) };
    }
}

impl Drop for EvtchnPort {
    fn drop(&mut self) {
        let mut argument = PortArgument { port: self.port };
        // SAFETY: this is the structure of the request, and it contains no pointer.
        let _ = unsafe { ioctl(&self.device.device, UNBIND, &mut argument) };
    }
}
