//! Attach calls: checks which descriptors a domain may receive, and hands out each one once.

use crate::domain::Domain;
use crate::event::EventPort;
use crate::hypercall::MonitorState;
use abi::DomId;
use abi::hypercall::AttachTarget;
use abi::layout::fd;
use rustix::io::Errno;
use sandbox::{NotifyListener, PendingCall};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Answers pending attach calls within the domain's budget; the others stay pending. Never blocks.
pub(crate) fn serve(domain: &mut Domain, shared: &MonitorState, now_ns: u64) {
    let id = domain.id;
    let Some(process) = domain.process().cloned() else {
        return;
    };
    // An error means that the domain has exited, which its pidfd reports to the main thread.
    while domain.attach_limit.available(now_ns) > 0
        && let Ok(Some(call)) = process.attach.receive(Duration::ZERO)
    {
        domain.attach_limit.take(now_ns, 1);
        if let Err(errno) = answer(shared, id, &process.attach, call) {
            // An error means that the domain has exited and needs no answer.
            let _ = process.attach.answer(call.id, 0, errno.raw_os_error());
        }
    }
}

/// Puts the requested descriptor into the caller's table.
fn answer(
    shared: &MonitorState,
    id: DomId,
    port: &NotifyListener,
    call: PendingCall,
) -> Result<(), Errno> {
    let put = |fd: BorrowedFd<'_>, first: i32, n: u32| {
        let at = n.checked_add(first.unsigned_abs()).ok_or(Errno::NOENT)?;
        let answered = port.add_descriptor(call.id, fd, at, true);
        answered.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    let [_, kind, index, ..] = call.args;
    match AttachTarget::decode([kind, index]).ok_or(Errno::INVAL)? {
        AttachTarget::Device(n) => {
            let put = |device: BorrowedFd<'_>| put(device, fd::DEVICE, n);
            shared.devices.pass_descriptor(id, n.into(), put)
        }
        AttachTarget::Doorbell(conn) => {
            let put = |other: &EventPort| put(other.doorbell(), fd::DOORBELL, conn.0);
            shared.connections.pass_doorbell(id, conn, put)
        }
    }
}

/// Returns the time from which attach calls are served again, or `None` if the domain is within its
/// budget.
pub(crate) fn next_ns(domain: &Domain, now_ns: u64) -> Option<u64> {
    let next = domain.attach_limit.ready_at(now_ns, 1);
    next.filter(|next| *next > now_ns)
}
