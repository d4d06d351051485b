//! The attach call: which descriptor a domain gets, if any. Each is handed out once.

use crate::connect::Connections;
use crate::device::{Controls, HandOut};
use crate::domain::{Domain, Parts, Running};
use crate::event::Port;
use abi::DomId;
use abi::hypercall::Attach;
use abi::layout::fd;
use rustix::event::epoll;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Answers the attach calls that wait, within the domain's budget: past it, they wait on.
/// Never blocks.
pub(crate) fn serve(
    domain: &mut Domain,
    connections: &Connections,
    controls: &Controls,
    now_ns: u64,
) {
    let id = domain.id;
    let Some(parts) = domain.parts.as_mut() else {
        return;
    };
    let running = parts.process.as_ref();
    let Some(process) = running.and_then(Running::process).cloned() else {
        return;
    };
    while parts.attaches.available(now_ns) > 0 {
        let served = process.attach(|port| {
            // An error means that the domain is gone: its end is noticed elsewhere.
            let Ok(Some(call)) = port.receive() else {
                return false;
            };
            parts.attaches.take(now_ns, 1);
            let answered = choose(parts, connections, controls, id, call.args).and_then(|chosen| {
                port.answer_fd(call, chosen.fd(parts)?, chosen.at)
                    .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                parts.attached.insert(chosen.at);
                Ok(())
            });
            if let Err(errno) = answered {
                // Every call is answered; who is gone needs no answer.
                let _ = port.answer_errno(call, errno.raw_os_error());
            }
            true
        });
        if !served {
            return;
        }
    }
}

/// A descriptor, and where it shall lie in the domain's table.
struct Chosen<'a> {
    at: i32,
    what: Target,
    /// A device does not end until the call is answered.
    _hand: Option<HandOut<'a>>,
}

enum Target {
    Device(u32),
    Doorbell(Arc<Port>),
}

impl Chosen<'_> {
    fn fd<'a>(&'a self, parts: &'a Parts) -> Result<BorrowedFd<'a>, Errno> {
        match &self.what {
            Target::Device(n) => Ok(device(parts, *n)?.as_fd()),
            Target::Doorbell(port) => Ok(port.doorbell()),
        }
    }
}

/// The descriptor of a device, if there is such a one.
fn device(parts: &Parts, number: u32) -> Result<&OwnedFd, Errno> {
    let device = parts.devices.get(number as usize);
    device.and_then(Option::as_ref).ok_or(Errno::NOENT)
}

/// What a domain's call asks for, if it may have it: one of its own devices, or the doorbell of
/// the other end of one of its own connections, and neither twice.
fn choose<'a>(
    parts: &Parts,
    connections: &Connections,
    controls: &'a Controls,
    id: DomId,
    args: [u64; 2],
) -> Result<Chosen<'a>, Errno> {
    let place = |first: i32, n: u32, max: u32| {
        let n = i32::try_from(n).ok().filter(|_| n < max);
        let at = n.and_then(|n| first.checked_add(n)).ok_or(Errno::NOENT)?;
        if parts.attached.contains(&at) {
            return Err(Errno::EXIST);
        }
        Ok(at)
    };
    match Attach::decode(args).ok_or(Errno::INVAL)? {
        Attach::Device(n) => {
            let device = device(parts, n)?;
            let at = place(fd::DEVICE, n, fd::DEVICES_MAX)?;
            let hand = controls.hand_out(id, n.into())?;
            let data = epoll::EventData::new_u64(u64::from(n));
            match epoll::add(&parts.epoll, device, data, epoll::EventFlags::IN) {
                // A file is always ready, so it cannot be waited for; and a call whose answer
                // failed may have come this far before.
                Ok(()) | Err(Errno::PERM | Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            Ok(Chosen {
                at,
                what: Target::Device(n),
                _hand: Some(hand),
            })
        }
        Attach::Doorbell(conn) => {
            let at = place(fd::DOORBELL, conn.0, fd::CONNECTIONS_MAX)?;
            let port = connections.other_end(id, conn)?;
            Ok(Chosen {
                at,
                what: Target::Doorbell(port),
                _hand: None,
            })
        }
    }
}

/// When a domain whose attach calls are not heard just now is heard again; none: it is.
pub(crate) fn next_ns(domain: &Domain, now_ns: u64) -> Option<u64> {
    let next = domain.parts.as_ref()?.attaches.ready_at(now_ns, 1)?;
    (next > now_ns).then_some(next)
}
