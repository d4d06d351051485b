//! Behaviour of both hostile domains. They wait until they are connected, then continuously make
//! invalid calls and print.

use abi::counted::Revocation;
use abi::hypercall::{CreateGrantOp, OPS_MAX, RevokeOp};
use abi::{ConnId, GrantRef, XenbusState};
use runtime::call::Calls;
use runtime::platform::{Platform, Wait, WakeSource};
use runtime::start::{StartError, print_line, rejected_error};
use std::cell::RefCell;
use std::rc::Rc;

/// Interval at which the domain checks whether it is connected.
const CHECK_INTERVAL_NS: u64 = 5_000_000;
/// Console lines per round.
const LINES: usize = 100;
/// A line that becomes longer when its control characters are escaped.
const LINE: &str = "\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}";

/// Waits until the peers of these connections are connected. `advance` advances this domain's ends
/// of the connections.
pub(crate) fn connect(
    platform: &dyn Platform,
    waiter: &impl Wait,
    conns: &[ConnId],
    mut advance: impl FnMut(),
) -> Result<(), StartError> {
    while !conns.iter().all(|conn| is_connected(platform, *conn)) {
        waiter.heartbeat();
        advance();
        waiter
            .sleep(WakeSource::All, Some(CHECK_INTERVAL_NS))
            .map_err(|why| rejected_error("epoll", why))?;
    }
    Ok(())
}

fn is_connected(platform: &dyn Platform, conn: ConnId) -> bool {
    let peer = platform.peer(conn);
    peer.is_ok_and(|peer| peer.is_some_and(|peer| peer.state == XenbusState::Connected))
}

/// Grants pages through arbitrary tables and revokes them. Each call has the maximum number of
/// pages.
pub(crate) fn invalid_grants(calls: &Rc<RefCell<Calls>>, create: impl Fn(u32) -> CreateGrantOp) {
    let creates: Vec<CreateGrantOp> = (0..OPS_MAX as u32).map(create).collect();
    calls.borrow_mut().create_grants(&creates, &mut Vec::new());
    let revoke = |create: &CreateGrantOp| RevokeOp {
        table: create.table,
        gref: GrantRef(create.index),
        how: Revocation::Force,
    };
    let revokes: Vec<RevokeOp> = creates.iter().map(revoke).collect();
    calls.borrow_mut().revoke_grants(&revokes, &mut Vec::new());
}

pub(crate) fn flood() {
    for _ in 0..LINES {
        print_line(format_args!("{LINE}"));
    }
}
