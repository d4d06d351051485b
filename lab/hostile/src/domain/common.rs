//! What both hostile domains do: wait until they are connected, then call nonsense and print
//! without a pause.

use abi::classic::{Map, Unmap};
use abi::hypercall::OPS_MAX;
use abi::{ConnId, XenbusState};
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

/// Maps and unmaps as much as a call may, all of it wrong.
pub(crate) fn nonsense(calls: &Rc<RefCell<Calls>>, map: impl Fn(u32) -> Map) {
    let mut status = Vec::new();
    let maps: Vec<Map> = (0..OPS_MAX as u32).map(map).collect();
    calls.borrow_mut().map(&maps, &mut status);
    let unmaps: Vec<Unmap> = maps.iter().map(|map| Unmap { slot: map.slot }).collect();
    calls.borrow_mut().unmap(&unmaps, &mut status);
}

pub(crate) fn flood() {
    for _ in 0..LINES {
        print_line(format_args!("{LINE}"));
    }
}
