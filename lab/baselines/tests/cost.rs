//! Measures the hypercalls of classic grants on one core. Prints the figures, and asserts nothing.
//! `cargo test --release -p baselines --test cost -- --ignored --nocapture`

#[path = "../../../tcb/grantwayd/tests/common/mod.rs"]
mod common;

use abi::classic::{CopyOp, CopyOperand, MapOp};
use abi::hypercall::HypercallKind;
use abi::{DomId, GrantRef, Slot};
use common::{Daemon, machine};
use serde_json::json;

#[test]
#[ignore = "measures"]
fn calls_cost_less_than_their_limits() {
    let mut plan = machine(1);
    plan.domains[0].cpus = vec![1];
    plan.domains[0].window_slots = 256;
    plan.domains[1].frames = 256;
    plan.domains[1].grant_entries = 256;
    let daemon = Daemon::up(&plan);
    for n in 0..256 {
        daemon.order(
            "g0",
            json!({ "do": "grant", "index": n, "to": 0, "frame": n }),
        );
    }
    let map = MapOp {
        domain: DomId(1),
        gref: GrantRef(0),
        slot: Slot(0),
        readonly: false,
    };
    let copy = |len| {
        let copy = CopyOp {
            src: CopyOperand::Granted {
                domain: DomId(1),
                gref: GrantRef(0),
            },
            dst: CopyOperand::Own { frame: 0 },
            src_offset: 0,
            dst_offset: 0,
            len,
        };
        copy.encode()
    };
    let time = |what: &str, each: serde_json::Value, ops: u64| {
        for calls in [100, 4000 / ops] {
            let order = json!({ "do": "time", "calls": calls, "each": each });
            let ns = daemon.order("driver", order);
            if calls != 100 {
                println!("{what}, {ops} a call: {ns} ns");
            }
        }
    };
    let empty = json!([{ "kind": HypercallKind::ConnectGet as u32, "words": [0], "ops": 1 }]);
    time("connection read", empty, 1);
    for ops in [1, 16, 64, 128] {
        for len in [64, 1500] {
            let kind = HypercallKind::GrantCopy as u32;
            // Each operation uses the guest's next page.
            let each = json!([{ "kind": kind, "words": copy(len), "step": [1], "ops": ops }]);
            time(&format!("copy of {len} B"), each, ops);
        }
        let maps = json!({ "kind": HypercallKind::GrantMap as u32, "words": map.encode(),
            "step": [1, 1], "ops": ops });
        let unmaps = json!({ "kind": HypercallKind::GrantUnmap as u32, "words": [0],
            "step": [1], "ops": ops });
        time("map and unmap", json!([maps, unmaps]), ops);
    }
    daemon.down();
}
