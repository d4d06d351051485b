//! The attach call: which descriptor a domain gets, if any.

use crate::connect::Connections;
use crate::domain::{Domain, Parts};
use abi::hypercall::Attach;
use abi::layout::fd;
use rustix::event::epoll;
use rustix::io::Errno;
use std::os::fd::AsFd;

/// Answers the attach calls that wait, within the domain's budget: past it, they wait on.
/// Never blocks.
pub(crate) fn serve(domain: &mut Domain, connections: &Connections, now_ns: u64) {
    let id = domain.id;
    let Some(parts) = domain.parts.as_mut() else {
        return;
    };
    loop {
        let Some(process) = parts.process.as_ref().map(|running| &running.process) else {
            return;
        };
        if parts.attaches.next_ns(now_ns) > now_ns {
            return;
        }
        let process = std::sync::Arc::clone(process);
        let served = process.try_attach(|port| {
            // An error means that the domain is gone: its end is noticed elsewhere.
            let Ok(Some(call)) = port.receive() else {
                return false;
            };
            parts.attaches.take(1, now_ns);
            let answered = match Attach::decode(call.args) {
                Some(Attach::Device(n)) => device(parts, n).and_then(|at| {
                    let device = parts.devices.get(n as usize).ok_or(Errno::NODEV)?;
                    port.answer_fd(call, device.as_fd(), at).map_err(errno)
                }),
                Some(Attach::Doorbell(conn)) => doorbell(conn).and_then(|at| {
                    let other = connections.other_end(id, conn)?;
                    port.answer_fd(call, other.doorbell(), at).map_err(errno)
                }),
                None => Err(Errno::INVAL),
            };
            if let Err(errno) = answered {
                // Every call is answered; who is gone needs no answer.
                let _ = port.answer_errno(call, errno.raw_os_error());
            }
            true
        });
        if served != Some(true) {
            return;
        }
    }
}

/// Puts device `n` into the domain's epoll set; returns where its descriptor shall lie.
fn device(parts: &Parts, n: u32) -> Result<i32, Errno> {
    let device = parts.devices.get(n as usize).ok_or(Errno::NODEV)?;
    let at = i32::try_from(n)
        .ok()
        .and_then(|n| fd::DEVICE.checked_add(n))
        .ok_or(Errno::NODEV)?;
    let data = epoll::EventData::new_u64(u64::from(n));
    match epoll::add(&parts.epoll, device, data, epoll::EventFlags::IN) {
        // Asked for once more; and a file is always ready, so it cannot be waited for.
        Ok(()) | Err(Errno::EXIST | Errno::PERM) => Ok(at),
        Err(errno) => Err(errno),
    }
}

fn doorbell(conn: abi::ConnId) -> Result<i32, Errno> {
    if conn.0 >= fd::CONNECTIONS_MAX {
        return Err(Errno::NOENT);
    }
    i32::try_from(conn.0)
        .ok()
        .and_then(|n| fd::DOORBELL.checked_add(n))
        .ok_or(Errno::NOENT)
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// When a domain whose attach calls are not heard just now is heard again; none: it is.
pub(crate) fn next_ns(domain: &mut Domain, now_ns: u64) -> Option<u64> {
    let next = domain.parts.as_mut()?.attaches.next_ns(now_ns);
    (next > now_ns).then_some(next)
}
