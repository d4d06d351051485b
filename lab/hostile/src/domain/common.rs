//! What both hostile domains do: wait until they are connected, then call nonsense and print
//! without a pause.

use abi::counted::Revocation;
use abi::hypercall::{Create, OPS_MAX, Revoke};
use abi::{ConnId, GrantRef, XenbusState};
use runtime::call::Calls;
use runtime::platform::{Bell, Platform, Waiting};
use runtime::start::{StartError, print_line, refused};
use std::cell::RefCell;
use std::rc::Rc;

/// How often a domain looks whether it is connected.
const LOOK_NS: u64 = 5_000_000;
/// Lines on the console in a round.
const LINES: usize = 100;
/// What is printed: it grows where controls are shown.
const LINE: &str = "\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}";

/// Waits until the other ends of all these connections are connected. `advance` takes this
/// domain's ends a step further.
pub(crate) fn connect(
    platform: &dyn Platform,
    waiter: &impl Waiting,
    conns: &[ConnId],
    mut advance: impl FnMut(),
) -> Result<(), StartError> {
    while !conns.iter().all(|conn| is_connected(platform, *conn)) {
        waiter.heartbeat();
        advance();
        waiter
            .sleep(Bell::All, Some(LOOK_NS))
            .map_err(|why| refused("epoll", why))?;
    }
    Ok(())
}

fn is_connected(platform: &dyn Platform, conn: ConnId) -> bool {
    let peer = platform.peer(conn);
    peer.is_ok_and(|peer| peer.is_some_and(|peer| peer.state == XenbusState::Connected))
}

/// Grants pages by tables of anybody's and revokes them, as much as a call may.
pub(crate) fn nonsense(calls: &Rc<RefCell<Calls>>, create: impl Fn(u32) -> Create) {
    let creates: Vec<Create> = (0..OPS_MAX as u32).map(create).collect();
    calls.borrow_mut().create_grants(&creates, &mut Vec::new());
    let revoke = |create: &Create| Revoke {
        table: create.table,
        gref: GrantRef(create.index),
        how: Revocation::Force,
    };
    let revokes: Vec<Revoke> = creates.iter().map(revoke).collect();
    calls.borrow_mut().revoke_grants(&revokes, &mut Vec::new());
}

pub(crate) fn flood() {
    for _ in 0..LINES {
        print_line(format_args!("{LINE}"));
    }
}
