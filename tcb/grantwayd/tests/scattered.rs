//! A guest that grants non-adjacent pages: each page needs one mapping in the driver domain, whose
//! process has a limited number of mappings (`specs/grants.md`, N-17).

mod common;

use abi::counted::{Revocation, table_slots};
use abi::hypercall::{BindOp, CreateGrantOp, HypercallKind, OPS_MAX, RevokeOp};
use abi::{DomId, GrantRef, Handle, Slot};
use common::{Daemon, machine};
use serde_json::Value;

/// Number of entries of the hostile guest's table: more than the kernel's default limit of mappings
/// per process.
const HOSTILE_ENTRIES: u32 = 1 << 16;
const OTHER_ENTRIES: u32 = 16;
const NO_SPACE: i64 = abi::GrantStatus::NoSpace as i64;
const OKAY: i64 = abi::GrantStatus::Okay as i64;

/// Creates a table of guest `n`, which the driver domain binds at slot `first`.
fn table(daemon: &Daemon, n: u16, entries: u32, first: u32) -> Handle {
    let guest = format!("g{n}");
    let create = [0, u64::from(entries), 0];
    let made = daemon.calls(&guest, HypercallKind::TableCreate, &[create]);
    assert_eq!(made[0][5], OKAY, "{made:?}");
    let table = Handle(made[0][1].as_u64().unwrap() as u32);
    let bind = BindOp {
        granter: DomId(n + 1),
        table,
        first: Slot(first),
        tables: Slot(first + entries),
        entries,
    };
    let bound = daemon.calls("driver", HypercallKind::TableBind, &[bind.encode()]);
    assert_eq!(bound[0][5], OKAY, "{bound:?}");
    table
}

/// Grants frames 0 and 2 alternately in all entries. Returns the number of created grants, and the
/// statuses of the other entries.
fn scatter(daemon: &Daemon, table: Handle) -> (u32, Vec<i64>) {
    let mut refusals = Vec::new();
    let all: Vec<u32> = (0..HOSTILE_ENTRIES).collect();
    for part in all.chunks(OPS_MAX) {
        let create = |&index: &u32| CreateGrantOp {
            table,
            index,
            frame: index % 2 * 2,
            readonly: false,
            io: false,
        };
        let ops: Vec<_> = part.iter().map(|index| create(index).encode()).collect();
        let statuses = daemon.statuses("g0", HypercallKind::GrantCreate, &ops);
        refusals.extend(statuses.into_iter().filter(|status| *status != OKAY));
    }
    (HOSTILE_ENTRIES - refusals.len() as u32, refusals)
}

fn mappings_of(pid: &Value) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
    maps.unwrap().lines().count()
}

#[test]
fn one_guest_cannot_exhaust_driver_mappings() {
    let mut plan = machine(2);
    plan.domains[0].window_slots =
        HOSTILE_ENTRIES + table_slots(HOSTILE_ENTRIES) + OTHER_ENTRIES + table_slots(OTHER_ENTRIES);
    plan.domains[1].grant_entries = HOSTILE_ENTRIES;
    let daemon = Daemon::up(&plan);
    let hostile = table(&daemon, 0, HOSTILE_ENTRIES, 0);
    let other = table(
        &daemon,
        1,
        OTHER_ENTRIES,
        HOSTILE_ENTRIES + table_slots(HOSTILE_ENTRIES),
    );
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let pid = daemon.domain_status("driver")["pid"].clone();
    let (made, refusals) = scatter(&daemon, hostile);
    assert!(refusals.iter().all(|status| *status == NO_SPACE));
    assert!(
        made as usize >= HOSTILE_ENTRIES.min(limit as u32 * 9 / 10) as usize,
        "{made}"
    );
    assert!(
        mappings_of(&pid) < limit,
        "{} of {limit}",
        mappings_of(&pid)
    );
    // The driver domain is alive, and the other guest can still use its full share.
    let own = |index: u32| CreateGrantOp {
        table: other,
        index,
        frame: index,
        readonly: false,
        io: false,
    };
    let ops: Vec<_> = (0..OTHER_ENTRIES)
        .map(|index| own(index).encode())
        .collect();
    let made = daemon.calls("g1", HypercallKind::GrantCreate, &ops);
    assert!(made.iter().all(|op| op[5] == OKAY), "{made:?}");
    let revoke = |op: &Value| RevokeOp {
        table: other,
        gref: GrantRef(op[3].as_u64().unwrap() as u32),
        how: Revocation::Refuse,
    };
    let ops: Vec<_> = made.iter().map(|op| revoke(op).encode()).collect();
    let revoked = daemon.calls("g1", HypercallKind::GrantRevoke, &ops);
    assert!(revoked.iter().all(|op| op[5] == OKAY), "{revoked:?}");
    // The agent of the driver domain unmaps all pages in one call before its deadline.
    let end = [u64::from(hostile.0), 0, 0];
    let ended = daemon.calls("g0", HypercallKind::TableEnd, &[end]);
    assert_eq!(ended[0][5], OKAY);
    assert!(mappings_of(&pid) < 200, "{}", mappings_of(&pid));
    assert_eq!(daemon.domain_status("driver")["pid"], pid);
    assert_eq!(daemon.domain_status("driver")["state"], "running");
    daemon.down();
}
