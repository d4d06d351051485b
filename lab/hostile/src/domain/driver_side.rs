//! A driver domain that does to its guests and to the monitor what it can.

use abi::hypercall::{Map, OPS_MAX, Unmap};
use abi::{ConnId, DomId, GrantRef, PAGE, Slot, XenbusState};
use config::domain::{DriverConfig, VifConfig};
use driver::vifs::VifPort;
use driver::vifs::memory::{GuestMemory, Shared, Window};
use runtime::call::Calls;
use runtime::ledger::Ledger;
use runtime::platform::{Bell, Platform, Waiting};
use runtime::start::{StartError, Started, print_line, refused};
use shmem::{Area, Span};
use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

/// How often it looks whether its guests are connected.
const LOOK_NS: u64 = 5_000_000;
/// Lines on the console in a round.
const LINES: usize = 100;
/// What is printed: it grows where controls are shown.
const LINE: &str = "\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}\u{1b}";
/// Rounds for which a guest is kept connected before it is told to close.
const KEPT: u32 = 200;

/// Connects guests as a driver domain does. Then marks their pages as in use, overwrites all that
/// it may write, calls and prints without a pause.
pub(crate) fn attack(started: Started<DriverConfig>) -> Result<Infallible, StartError> {
    let Started {
        home,
        platform,
        calls,
        waiter,
        config,
    } = started;
    let shared = Shared {
        platform: Rc::clone(&platform),
        calls: Rc::clone(&calls),
        frames: home.frames,
        grants: config.grants,
        offloads: config.offloads,
        ring_order: config.ring_order,
        ring_format: config.ring_format,
        meta: config.lro.meta,
    };
    let mut ports: Vec<VifPort> = config.vifs.iter().map(|vif| port(vif, &shared)).collect();
    platform.ready().map_err(|why| refused("ready", why))?;
    let is_connected = |vif: &VifConfig| {
        let peer = platform.peer(ConnId(vif.conn));
        peer.is_ok_and(|peer| peer.is_some_and(|peer| peer.state == XenbusState::Connected))
    };
    while !config.vifs.iter().all(is_connected) {
        waiter.heartbeat();
        ports.iter_mut().for_each(VifPort::advance);
        waiter
            .sleep(Bell::All, Some(LOOK_NS))
            .map_err(|why| refused("epoll", why))?;
    }
    let mut round = 0;
    loop {
        waiter.heartbeat();
        ports.iter_mut().for_each(VifPort::advance);
        overwrite(home.window, round);
        nonsense(&calls, round);
        for _ in 0..LINES {
            print_line(format_args!("{LINE}"));
        }
        if round % KEPT == KEPT - 1 {
            close(&*platform, &config.vifs);
        }
        round += 1;
    }
}

fn port(vif: &VifConfig, shared: &Shared) -> VifPort {
    let window = Window {
        first: Slot(vif.first_slot),
        slots: vif.slots,
        tables: Slot(vif.tables_slot),
        flips: vif.flip_pages,
    };
    let (name, conn) = (vif.name.clone(), ConnId(vif.conn));
    let (platform, ledger) = (Rc::clone(&shared.platform), Rc::new(Ledger::new(false)));
    let memory = GuestMemory {
        shared: shared.clone(),
        window,
        staging: Span::EMPTY,
    };
    VifPort::new(name, conn, vif.mac, platform, ledger, Box::new(memory))
}

/// Every page of the window that may be written: rings, buffers, the counts of uses.
fn overwrite(window: Area, round: u32) {
    for page in 0..(window.len() / PAGE) as u32 {
        if let Some(page) = window.page(page) {
            let _missing = page.fill(round as u8 | 1);
        }
    }
}

/// Tells the guests to close, so that they revoke what is marked as in use.
fn close(platform: &dyn Platform, vifs: &[VifConfig]) {
    for vif in vifs {
        let record = runtime::platform::NO_RECORD;
        let _refused = platform.set_state(ConnId(vif.conn), XenbusState::Closing, &record);
    }
}

fn nonsense(calls: &Rc<RefCell<Calls>>, round: u32) {
    let map = |n: u32| Map {
        domain: DomId((n + round) as u16 % 32),
        gref: GrantRef(n),
        slot: Slot(n),
        readonly: false,
    };
    let maps: Vec<Map> = (0..OPS_MAX as u32).map(map).collect();
    let mut status = Vec::new();
    calls.borrow_mut().map(&maps, &mut status);
    let unmaps: Vec<Unmap> = maps.iter().map(|map| Unmap { slot: map.slot }).collect();
    calls.borrow_mut().unmap(&unmaps, &mut status);
}
