//! Runs real monitors with domains that use classic grants, with a hypercall per use.

#[path = "../../../tcb/grantwayd/tests/common/mod.rs"]
mod common;

use abi::classic::{CopyOp, CopyOperand, MapOp};
use abi::hypercall::HypercallKind;
use abi::{DomId, GrantRef, Slot};
use common::{Daemon, eventually, is_process, kill, machine};
use serde_json::{Value, json};

fn grant(frame: u32, readonly: bool, index: u32) -> Value {
    json!({ "do": "grant", "index": index, "to": 0, "frame": frame, "readonly": readonly })
}

fn map(gref: u32, slot: u32, readonly: bool) -> [u64; 3] {
    let (domain, gref, slot) = (DomId(1), GrantRef(gref), Slot(slot));
    MapOp {
        domain,
        gref,
        slot,
        readonly,
    }
    .encode()
}

/// Grants frame 3 of the first guest to the driver domain, and maps it there.
fn with_mapping(daemon: &Daemon) {
    daemon.order("g0", grant(3, false, 0));
    daemon.order("g0", json!({ "do": "fill", "frame": 3, "byte": 7 }));
    let mapped = daemon.call("driver", HypercallKind::GrantMap, map(0, 0, false));
    assert_eq!(mapped.0, 0, "{}", mapped.1);
    let look = json!({ "do": "read-slot", "slot": 0 });
    assert_eq!(daemon.order("driver", look), 7);
}

#[test]
fn pages_are_mapped_used_and_unmapped() {
    let daemon = Daemon::up(&machine(1));
    daemon.order("g0", json!({ "do": "fill", "frame": 3, "byte": 7 }));
    daemon.order("g0", grant(3, false, 5));
    daemon.order("g0", grant(3, true, 6));
    let maps = [
        map(5, 0, false),
        map(6, 1, true),
        map(6, 2, false),
        map(5, 3, true),
    ];
    let statuses = daemon.statuses("driver", HypercallKind::GrantMap, &maps);
    assert_eq!(statuses, [0, 0, -8, 0]);
    let look = |slot: u32| daemon.order("driver", json!({ "do": "read-slot", "slot": slot }));
    let fill = |slot: u32, byte: u8| {
        daemon.order(
            "driver",
            json!({ "do": "fill-slot", "slot": slot, "byte": byte }),
        )
    };
    assert_eq!(
        [look(0), look(1), look(2), look(3)],
        [json!(7), json!(7), json!("fault"), json!(7)]
    );
    assert_eq!([fill(1, 8), fill(3, 8)], ["fault", "fault"]);
    assert_eq!(fill(0, 8), "done");
    assert_eq!(daemon.order("g0", json!({ "do": "read", "frame": 3 })), 8);

    let guest = daemon.domain_audit("g0");
    assert_eq!(
        (&guest["granted"], &guest["owned"]),
        (&json!(1), &json!(16))
    );
    let expected = json!([
        { "gref": 5, "frame": 3, "by": "driver", "mappings": 2, "writable": true },
        { "gref": 6, "frame": 3, "by": "driver", "mappings": 1, "writable": false },
    ]);
    assert_eq!(guest["in_use"], expected);
    assert_eq!(daemon.domain_audit("driver")["mapped"], 1);

    let slots = [[0, 0, 0], [1, 0, 0], [3, 0, 0], [3, 0, 0]];
    let statuses = daemon.statuses("driver", HypercallKind::GrantUnmap, &slots);
    assert_eq!(statuses, [0, 0, 0, -4]);
    assert_eq!([look(0), look(1), look(3)], ["fault", "fault", "fault"]);
    assert_eq!(daemon.domain_audit("g0")["in_use"], json!([]));
    daemon.down();
}

#[test]
fn bytes_are_copied_between_granted_pages() {
    let daemon = Daemon::up(&machine(1));
    daemon.order("g0", json!({ "do": "fill", "frame": 0, "byte": 42 }));
    daemon.order("g0", grant(0, true, 0));
    daemon.order("g0", grant(1, false, 1));
    let granted = |gref| CopyOperand::Granted {
        domain: DomId(1),
        gref: GrantRef(gref),
    };
    let copy = |src, dst| {
        CopyOp {
            src,
            dst,
            src_offset: 0,
            dst_offset: 0,
            len: 4096,
        }
        .encode()
    };
    let own = CopyOperand::Own { frame: 9 };
    let ops = [
        copy(granted(0), own),
        copy(own, granted(1)),
        copy(own, granted(0)),
    ];
    let statuses = daemon.statuses("driver", HypercallKind::GrantCopy, &ops);
    assert_eq!(statuses, [0, 0, -8]);
    assert_eq!(
        daemon.order("driver", json!({ "do": "read", "frame": 9 })),
        42
    );
    assert_eq!(daemon.order("g0", json!({ "do": "read", "frame": 1 })), 42);
    daemon.down();
}

#[test]
fn driver_killed_with_mappings_leaks_nothing() {
    let daemon = Daemon::up(&machine(2));
    with_mapping(&daemon);
    let driver = daemon.domain_status("driver");
    kill(driver["pid"].as_i64().unwrap());
    daemon.await_exit("driver");
    assert_eq!(daemon.domain_audit("g0")["in_use"], json!([]));
    assert!(!is_process(driver["agent_pid"].as_i64().unwrap()));
    let end = json!({ "do": "grant", "index": 0, "end": true });
    assert_eq!(daemon.order("g0", end), false, "the entry is not in use");
    daemon.down();
}

#[test]
fn memory_of_dead_guest_remains_until_unmapped() {
    let daemon = Daemon::up(&machine(2));
    with_mapping(&daemon);
    kill(daemon.domain_status("g0")["pid"].as_i64().unwrap());
    eventually("the guest is dead", || {
        daemon.domain_status("g0")["alive"] == false
    });
    eventually("the guest's end is unknown", || {
        daemon.other_end("driver").1 == 0
    });
    assert_eq!(daemon.domain_audit("g0")["owned"], 16);
    assert_eq!(
        daemon.order("driver", json!({ "do": "read-slot", "slot": 0 })),
        7
    );
    let (status, _) = daemon.call("driver", HypercallKind::GrantMap, map(0, 1, true));
    assert_eq!(status, -2, "the granter is dead");
    assert_eq!(
        daemon.call("driver", HypercallKind::GrantUnmap, [0; 3]).0,
        0
    );
    daemon.await_exit("g0");
    daemon.down();
}

#[test]
fn new_driver_waits_until_old_pages_are_unmapped() {
    let mut plan = machine(1);
    plan.domains[0].restart_pause_ms = Some(5);
    let daemon = Daemon::up(&plan);
    let driver = || daemon.domain_status("driver");
    let grant = json!({ "do": "grant", "index": 0, "to": 1, "frame": 3 });
    daemon.order("driver", grant);
    let map = MapOp {
        domain: DomId(0),
        gref: GrantRef(0),
        slot: Slot(0),
        readonly: true,
    };
    assert_eq!(
        daemon.call("g0", HypercallKind::GrantMap, map.encode()).0,
        0
    );
    kill(driver()["pid"].as_i64().unwrap());
    let waits = "memory of its predecessor is still in use";
    eventually("the wait is reported", || {
        driver()["state"].as_str().unwrap().contains(waits)
    });
    assert_eq!(daemon.domain_audit("driver")["owned"], 16);
    assert_eq!(daemon.call("g0", HypercallKind::GrantUnmap, [0; 3]).0, 0);
    eventually("the driver restarts", || driver()["state"] == "running");
    daemon.logs("driver: started again");
    assert_eq!(
        daemon.log().matches(waits).count(),
        1,
        "the wait is logged once"
    );
    daemon.down();
}

/// The same machine serves counted grants. Mappings cannot replace the slots of a grant table.
#[test]
fn mappings_cannot_replace_slots_of_a_table() {
    let daemon = Daemon::up(&machine(1));
    daemon.share();
    daemon.order("g0", grant(3, false, 1));
    let maps = [0, 2, 8, 4].map(|slot| map(1, slot, true));
    let statuses = daemon.statuses("driver", HypercallKind::GrantMap, &maps);
    assert_eq!(statuses, [-5, -5, -5, 0]);
    daemon.down();
}

#[test]
fn unmap_timeout_kills_the_domain() {
    let daemon = Daemon::up(&machine(2));
    with_mapping(&daemon);
    daemon.stop_agent("driver");
    let unmap = json!({ "do": "call", "kind": HypercallKind::GrantUnmap as u32, "ops": [[0]] });
    // The monitor kills the driver during this call.
    daemon.order("driver", unmap);
    let state = daemon.await_exit("driver");
    assert_eq!(
        state,
        "killed: the address space is lost: the agent did not answer in time"
    );
    assert_eq!(daemon.domain_audit("g0")["in_use"], json!([]));
    daemon.down();
}
