//! The attach call: which descriptor a domain gets, if any. Each is handed out once.

use crate::connect::Connections;
use crate::device::Devices;
use crate::domain::{Domain, Parts, Running};
use abi::DomId;
use abi::hypercall::Attach;
use abi::layout::fd;
use rustix::io::Errno;
use sandbox::{AttachPort, Call};
use std::os::fd::BorrowedFd;

/// Answers the attach calls that wait, within the domain's budget: past it, they wait on.
/// Never blocks.
pub(crate) fn serve(
    domain: &mut Domain,
    connections: &Connections,
    devices: &Devices,
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
    // An error means that the domain is gone: its end is noticed elsewhere.
    while parts.attaches.available(now_ns) > 0
        && let Ok(Some(call)) = process.attach.receive()
    {
        parts.attaches.take(now_ns, 1);
        if let Err(errno) = answer(parts, connections, devices, id, &process.attach, call) {
            // Every call is answered; who is gone needs no answer.
            let _ = process.attach.answer_errno(call, errno.raw_os_error());
        }
    }
}

/// Puts what a call asks for into its domain's table.
fn answer(
    parts: &mut Parts,
    connections: &Connections,
    devices: &Devices,
    id: DomId,
    port: &AttachPort,
    call: Call,
) -> Result<(), Errno> {
    let place = |first: i32, n: u32, max: u32| {
        let n = i32::try_from(n).ok().filter(|_| n < max);
        let at = n.and_then(|n| first.checked_add(n)).ok_or(Errno::NOENT)?;
        if parts.attached.contains(&at) {
            return Err(Errno::EXIST);
        }
        Ok(at)
    };
    let put = |fd: BorrowedFd<'_>, at: i32| {
        let answered = port.answer_fd(call, fd, at);
        answered.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    let [_, kind, index, ..] = call.args;
    let at = match Attach::decode([kind, index]).ok_or(Errno::INVAL)? {
        Attach::Device(n) => devices.hand_out(id, n.into(), |device| {
            let at = place(fd::DEVICE, n, fd::DEVICES_MAX)?;
            put(device, at)?;
            Ok(at)
        })?,
        Attach::Doorbell(conn) => {
            let at = place(fd::DOORBELL, conn.0, fd::CONNECTIONS_MAX)?;
            put(connections.other_end(id, conn)?.doorbell(), at)?;
            at
        }
    };
    parts.attached.insert(at);
    Ok(())
}

/// When a domain whose attach calls are not heard just now is heard again; none: it is.
pub(crate) fn next_ns(domain: &Domain, now_ns: u64) -> Option<u64> {
    let next = domain.parts.as_ref()?.attaches.ready_at(now_ns, 1)?;
    (next > now_ns).then_some(next)
}
