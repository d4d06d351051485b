//! Real monitors with a driver domain that resists the revocation of a guest's counted grants
//! (`specs/grants.md`, N-1 … N-15): the driver domain cannot access a revoked page by any means.
//! `tcb/sandbox/tests/grants.rs` covers a read in flight while its page is unmapped.

mod common;

use abi::counted::Revocation;
use abi::hypercall::{BindOp, CreateGrantOp, HypercallKind, RevokeOp};
use abi::{DomId, GrantRef, Handle, Slot};
use common::{Daemon, eventually, kill, machine};
use serde_json::{Value, json};

const ENTRIES: u32 = 4;
/// Slots of the sub-tables of guest 0's table in the driver domain's window. The entries are at
/// slots 0 … 3.
const TRANSLATION: u32 = 8;
const STATUS: u32 = 9;

/// A table of guest 0, bound by the driver domain.
struct Table<'a> {
    daemon: &'a Daemon,
    handle: Handle,
}

impl<'a> Table<'a> {
    fn new(daemon: &'a Daemon) -> Self {
        let create = [0, u64::from(ENTRIES), 0];
        let made = daemon.calls("g0", HypercallKind::TableCreate, &[create]);
        assert_eq!(made[0][5], 0, "{made:?}");
        let handle = Handle(made[0][1].as_u64().unwrap() as u32);
        let bind = BindOp {
            granter: DomId(1),
            table: handle,
            first: Slot(0),
            tables: Slot(TRANSLATION),
            entries: ENTRIES,
        };
        let bound = daemon.calls("driver", HypercallKind::TableBind, &[bind.encode()]);
        assert_eq!(bound[0][5], 0, "{bound:?}");
        Self { daemon, handle }
    }

    /// Grants frame 3 + `index` by entry `index`. Returns the status and the reference.
    fn grant(&self, index: u32, readonly: bool) -> (i64, GrantRef) {
        let create = CreateGrantOp {
            table: self.handle,
            index,
            frame: 3 + index,
            readonly,
            io: false,
        };
        let made = self
            .daemon
            .calls("g0", HypercallKind::GrantCreate, &[create.encode()]);
        let gref = GrantRef(made[0][3].as_u64().unwrap() as u32);
        (made[0][5].as_i64().unwrap(), gref)
    }

    fn revoke(&self, gref: GrantRef, how: Revocation) -> i64 {
        let revoke = RevokeOp {
            table: self.handle,
            gref,
            how,
        };
        let done = self
            .daemon
            .calls("g0", HypercallKind::GrantRevoke, &[revoke.encode()]);
        done[0][5].as_i64().unwrap()
    }

    fn fill(&self, index: u32, byte: u8) {
        let fill = json!({ "do": "fill", "frame": 3 + index, "byte": byte });
        assert_eq!(self.daemon.order("g0", fill), "done");
    }

    fn read_own(&self, index: u32) -> Value {
        self.daemon
            .order("g0", json!({ "do": "read", "frame": 3 + index }))
    }

    /// Reads a slot of the driver domain's window.
    fn read_slot(&self, slot: u32) -> Value {
        self.daemon
            .order("driver", json!({ "do": "read-slot", "slot": slot }))
    }

    /// Makes the driver domain claim `uses` uses of an entry.
    fn claim(&self, index: u32, uses: u32) {
        let poke = json!({ "do": "poke", "slot": STATUS, "offset": index * 4, "value": uses });
        assert_eq!(self.daemon.order("driver", poke), "done");
    }
}

#[test]
fn the_driver_uses_grants_without_hypercalls() {
    let daemon = Daemon::up(&machine(2));
    let table = Table::new(&daemon);
    table.fill(0, 7);
    let calls = daemon.domain_status("driver")["hypercalls"].clone();
    let (status, gref) = table.grant(0, false);
    assert_eq!((status, gref), (0, GrantRef::new(0, 1)));
    assert_eq!(table.read_slot(0), 7);
    let write = json!({ "do": "fill-slot", "slot": 0, "byte": 9 });
    assert_eq!(daemon.order("driver", write), "done");
    assert_eq!(table.read_own(0), 9);
    let audit = daemon.domain_audit("driver");
    assert_eq!(
        (&audit["mapped"], &audit["collateral_used"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(table.revoke(gref, Revocation::Refuse), 0);
    assert_eq!(table.read_slot(0), "fault");
    assert_eq!(
        table.revoke(gref, Revocation::Refuse),
        -3,
        "the page is unmapped"
    );
    assert_eq!(daemon.domain_status("driver")["hypercalls"], calls);
    // N-3, N-4: a read-only page and the translation sub-table are not writable.
    assert_eq!(table.grant(1, true).0, 0);
    let write = json!({ "do": "fill-slot", "slot": 1, "byte": 9 });
    assert_eq!(daemon.order("driver", write), "fault");
    let forge = json!({ "do": "poke", "slot": TRANSLATION, "offset": 0, "value": 1 });
    assert_eq!(daemon.order("driver", forge), "fault");
    let audit = daemon.audit();
    assert_eq!(
        (&audit["created"], &audit["revoked"]),
        (&json!(2), &json!(1))
    );
    daemon.down();
}

#[test]
fn a_spinning_reader_faults_after_revocation() {
    let daemon = Daemon::up(&machine(2));
    let table = Table::new(&daemon);
    for round in 0..10u8 {
        // In even rounds, the driver domain falsely claims not to use the page.
        table.claim(0, u32::from(round % 2));
        table.fill(0, 7);
        let (status, gref) = table.grant(0, false);
        assert_eq!(status, 0);
        daemon.order("driver", json!({ "do": "spin-slot", "slot": 0 }));
        let spun = || daemon.order("driver", json!({ "do": "spun" }));
        eventually("the driver domain has read the page", || {
            spun()["reads"].as_u64() > Some(0)
        });
        assert_eq!(table.revoke(gref, Revocation::Force), 0);
        table.fill(0, 200 + round);
        let before = spun()["faults"].as_u64().unwrap();
        eventually("the driver domain faults", || {
            spun()["faults"].as_u64() > Some(before)
        });
        let report = spun();
        assert_eq!(report["seen"], json!([7]), "round {round}: {report}");
        // The entry must leave quarantine for the next round.
        table.claim(0, 0);
    }
    daemon.down();
}

#[test]
fn a_false_status_blocks_no_revocation() {
    let daemon = Daemon::up(&machine(2));
    let table = Table::new(&daemon);
    table.fill(0, 7);
    let (_, gref) = table.grant(0, false);
    table.claim(0, u32::MAX);
    assert_eq!(table.revoke(gref, Revocation::Refuse), -12);
    assert_eq!(
        table.read_slot(0),
        7,
        "a refused revocation changes nothing"
    );
    assert_eq!(table.revoke(gref, Revocation::Drain), -12);
    assert_eq!(table.revoke(gref, Revocation::Force), 0);
    assert_eq!(table.read_slot(0), "fault");
    assert_eq!(table.read_own(0), 7, "the guest's data is in its new frame");
    assert_eq!(daemon.domain_audit("driver")["collateral_used"], 1);
    assert_eq!(table.grant(0, false).0, -12, "in quarantine");
    table.claim(0, 0);
    let (status, next) = table.grant(0, false);
    assert_eq!((status, next), (0, GrantRef::new(0, 2)));
    assert_eq!(table.read_slot(0), 7);
    let audit = daemon.audit();
    assert_eq!(audit["forced"], 1);
    assert_eq!(daemon.domain_audit("driver")["collateral_used"], 0);
    daemon.down();
}

#[test]
fn exhausted_collateral_kills_only_the_driver() {
    let daemon = Daemon::up(&machine(2));
    let table = Table::new(&daemon);
    let grefs: Vec<_> = (0..3)
        .map(|index| {
            table.claim(index, 1);
            table.fill(index, 7);
            table.grant(index, false).1
        })
        .collect();
    for gref in grefs {
        assert_eq!(
            table.revoke(gref, Revocation::Force),
            0,
            "force always succeeds"
        );
    }
    let state = daemon.await_exit("driver");
    assert_eq!(state, "killed: it keeps revoked grants in use");
    assert_eq!(table.read_own(2), 7);
    assert_eq!(daemon.domain_audit("g0")["granted"], 0);
    assert_eq!(daemon.order("g1", json!({ "do": "id" })), 2);
    // The table belongs to a domain that is dead now.
    assert_eq!(table.grant(3, false).0, -4);
    daemon.down();
}

#[test]
fn a_blocked_agent_kills_its_driver() {
    for how in [Revocation::Refuse, Revocation::Force] {
        let daemon = Daemon::up(&machine(2));
        let table = Table::new(&daemon);
        table.fill(0, 7);
        let (_, gref) = table.grant(0, false);
        daemon.stop_agent("driver");
        assert_eq!(table.revoke(gref, how), 0);
        // When the guest receives the result, the driver domain can no longer run.
        let state = daemon.await_exit("driver");
        assert_eq!(state, "killed: the agent did not answer in time");
        assert_eq!(daemon.order("g1", json!({ "do": "id" })), 2);
        daemon.down();
    }
}

#[test]
fn a_dead_guests_pages_are_revoked_immediately() {
    let daemon = Daemon::up(&machine(2));
    let table = Table::new(&daemon);
    for index in 0..2 {
        table.fill(index, 7);
        assert_eq!(table.grant(index, false).0, 0);
        table.claim(index, index);
    }
    kill(daemon.domain_status("g0")["pid"].as_i64().unwrap());
    // N-14: the core revokes the grants even if the driver domain claims to use them.
    daemon.await_exit("g0");
    assert_eq!(
        (table.read_slot(0), table.read_slot(1)),
        (json!("fault"), json!("fault"))
    );
    // The sub-tables remain until the driver domain ends its half of the table.
    assert_eq!(table.read_slot(STATUS), 0);
    let end = [[u64::from(table.handle.0), 0, 0]];
    assert_eq!(
        daemon.calls("driver", HypercallKind::TableEnd, &end)[0][5],
        0
    );
    assert_eq!(table.read_slot(STATUS), "fault");
    assert_eq!(daemon.audit()["leaked"], 0);
    assert_eq!(daemon.domain_audit("driver")["collateral_used"], 0);
    daemon.down();
}

#[test]
fn tables_belong_to_their_two_ends_only() {
    let daemon = Daemon::up(&machine(2));
    let table = Table::new(&daemon);
    let gref = table.grant(0, false).1;
    let handle = u64::from(table.handle.0);
    let revoke = RevokeOp {
        table: table.handle,
        gref,
        how: Revocation::Force,
    };
    let create = CreateGrantOp {
        table: table.handle,
        index: 1,
        frame: 0,
        readonly: false,
        io: false,
    };
    let bind = BindOp {
        granter: DomId(1),
        table: table.handle,
        first: Slot(4),
        tables: Slot(10),
        entries: ENTRIES,
    };
    for domain in ["g1", "driver"] {
        let foreign_calls = [
            (HypercallKind::GrantRevoke, revoke.encode()),
            (HypercallKind::GrantCreate, create.encode()),
            (HypercallKind::TableBind, bind.encode()),
        ];
        for (kind, words) in foreign_calls {
            let refused = daemon.calls(domain, kind, &[words]);
            assert_eq!(refused[0][5], -4, "{domain} {kind:?}");
        }
    }
    let ended = daemon.calls("g1", HypercallKind::TableEnd, &[[handle, 0, 0]]);
    assert_eq!(ended[0][5], -4);
    daemon.down();
}
