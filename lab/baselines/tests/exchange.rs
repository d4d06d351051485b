//! Runs real monitors with domains that exchange pages (`specs/grants.md`, F-1 … F-11). The page
//! tables prevent each end from accessing the other end's pages.

#[path = "../../../tcb/grantwayd/tests/common/mod.rs"]
mod common;

use abi::classic::TransferOp;
use abi::hypercall::{BindOp, HypercallKind};
use abi::{DomId, GrantRef, Handle, Slot};
use common::{Daemon, kill, machine};
use serde_json::{Value, json};

const PAGES: u32 = 4;

/// An exchange between guest 0 and the driver, at slots 0 … 3 of both.
struct Pages<'a> {
    daemon: &'a Daemon,
    handle: Handle,
}

impl<'a> Pages<'a> {
    fn new(daemon: &'a Daemon) -> Self {
        let (conn, first) = (0, 0);
        let create = [conn, PAGES.into(), first];
        let (status, made) = daemon.call("g0", HypercallKind::ExchangeCreate, create);
        assert_eq!(status, 0, "{made}");
        let handle = Handle(made[1].as_u64().unwrap() as u32);
        let bind = BindOp {
            granter: DomId(1),
            table: handle,
            first: Slot(0),
            tables: Slot(0),
            entries: PAGES,
        };
        let (status, bound) = daemon.call("driver", HypercallKind::TableBind, bind.encode());
        assert_eq!(status, 0, "{bound}");
        Self { daemon, handle }
    }

    fn fill(&self, domain: &str, slot: u32, byte: u8) {
        let fill = json!({ "do": "fill-slot", "slot": slot, "byte": byte });
        assert_eq!(self.daemon.order(domain, fill), "done");
    }

    fn read_page(&self, domain: &str, slot: u32) -> Value {
        self.daemon
            .order(domain, json!({ "do": "read-slot", "slot": slot }))
    }

    /// Makes the guest accept a page at a slot, through the entry with the same number.
    fn accept(&self, slot: u32) {
        let accept =
            json!({ "do": "grant", "accept": true, "index": slot, "to": 0, "frame": slot });
        self.daemon.order("g0", accept);
    }

    /// Makes the driver swap the page at one of its slots for the page at a slot of the guest.
    fn transfer(&self, slot: u32, to: u32) -> i64 {
        let op = TransferOp {
            exchange: self.handle,
            slot: Slot(slot),
            gref: GrantRef(to),
        };
        self.daemon
            .call("driver", HypercallKind::GrantTransfer, op.encode())
            .0
    }
}

#[test]
fn flipped_pages_are_inaccessible_to_the_other_end() {
    let daemon = Daemon::up(&machine(2));
    let pages = Pages::new(&daemon);
    for domain in ["driver", "g0"] {
        assert_eq!(daemon.domain_audit(domain)["owned"], 16 + PAGES);
    }
    pages.fill("driver", 1, 9);
    pages.fill("g0", 2, 7);
    pages.accept(2);
    assert_eq!(pages.transfer(1, 2), 0);
    assert_eq!(
        (pages.read_page("g0", 2), pages.read_page("driver", 1)),
        (json!(9), json!(0))
    );
    // Each end writes to its new page.
    pages.fill("driver", 1, 5);
    assert_eq!(pages.read_page("g0", 2), 9);
    pages.fill("g0", 2, 6);
    assert_eq!(pages.read_page("driver", 1), 5);
    // The transfer has consumed the entry, and the transferred page belongs only to the guest.
    assert_eq!(pages.transfer(0, 2), -3);
    assert_eq!(pages.read_page("g0", 2), 6);
    // The other guest has no access to the exchange.
    assert_eq!(pages.read_page("g1", 2), "fault");
    daemon.down();
}

/// Transfers pages in a cycle, a thousand times: each page arrives at the guest with its bytes, and
/// returns to the driver zeroed.
#[test]
fn pages_are_flipped_in_cycles() {
    let daemon = Daemon::up(&machine(1));
    let pages = Pages::new(&daemon);
    for n in 0..1000u32 {
        let (from, to) = (n % PAGES, n / PAGES % PAGES);
        assert_eq!(pages.read_page("driver", from), 0, "round {n}");
        let byte = 1 + (n % 250) as u8;
        pages.fill("driver", from, byte);
        pages.accept(to);
        assert_eq!(pages.transfer(from, to), 0);
        assert_eq!(pages.read_page("g0", to), byte, "round {n}");
    }
    assert_eq!(daemon.audit()["leaked"], 0);
    daemon.down();
}

#[test]
fn guest_with_silent_agent_is_killed() {
    let daemon = Daemon::up(&machine(2));
    let pages = Pages::new(&daemon);
    pages.fill("driver", 1, 9);
    pages.accept(2);
    daemon.stop_agent("g0");
    assert_eq!(pages.transfer(1, 2), -2);
    assert_eq!(pages.read_page("driver", 1), 9);
    daemon.await_exit("g0");
    // The driver keeps its pages until it releases them. It cannot exchange them, because the other
    // end is dead.
    assert_eq!(pages.transfer(1, 2), -4);
    assert_eq!(daemon.domain_audit("driver")["owned"], 16 + PAGES);
    let handle = [u64::from(pages.handle.0), 0, 0];
    assert_eq!(daemon.call("driver", HypercallKind::TableEnd, handle).0, 0);
    assert_eq!(pages.read_page("driver", 1), "fault");
    assert_eq!(daemon.domain_audit("driver")["owned"], 16);
    daemon.down();
}

#[test]
fn driver_with_silent_agent_is_killed() {
    let daemon = Daemon::up(&machine(2));
    let pages = Pages::new(&daemon);
    pages.fill("driver", 1, 9);
    pages.fill("g0", 2, 7);
    pages.accept(2);
    daemon.stop_agent("driver");
    let op = TransferOp {
        exchange: pages.handle,
        slot: Slot(1),
        gref: GrantRef(2),
    };
    let call =
        json!({ "do": "call", "kind": HypercallKind::GrantTransfer as u32, "ops": [op.encode()] });
    // The monitor kills the driver during this call.
    daemon.order("driver", call);
    daemon.await_exit("driver");
    assert_eq!(pages.read_page("g0", 2), 9);
    assert_eq!(daemon.domain_audit("g0")["owned"], 16 + PAGES);
    assert_eq!(daemon.order("g1", json!({ "do": "id" })), 2);
    daemon.down();
}

#[test]
fn pages_of_a_dead_guest_are_released() {
    let daemon = Daemon::up(&machine(2));
    let pages = Pages::new(&daemon);
    pages.fill("g0", 2, 7);
    kill(daemon.domain_status("g0")["pid"].as_i64().unwrap());
    daemon.await_exit("g0");
    assert_eq!(pages.transfer(0, 2), -4);
    for slot in 0..PAGES {
        assert_eq!(pages.read_page("driver", slot), 0);
    }
    daemon.down();
}
