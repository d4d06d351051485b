//! Measures the cost of counted-grant hypercalls on one CPU. Prints figures without asserting them:
//! `cargo test --release -p grantwayd --test cost -- --ignored --nocapture`

mod common;

use abi::counted::Revocation;
use abi::hypercall::{BindOp, CreateGrantOp, HypercallKind, RevokeOp};
use abi::{DomId, GrantRef, Handle, Slot};
use common::{Daemon, machine};
use serde_json::json;

/// Prints the granter's cost of counted grants while their user sleeps on the same core.
#[test]
#[ignore = "measures"]
fn cost_of_counted_grants() {
    const PAGES: u32 = 512;
    let mut plan = machine(1);
    for domain in &mut plan.domains {
        domain.cpus = vec![1];
    }
    plan.domains[0].window_slots = 1024;
    plan.domains[0].collateral = 128;
    plan.domains[1].frames = PAGES;
    plan.domains[1].grant_entries = PAGES;
    let daemon = Daemon::up(&plan);
    let call = |domain: &str, kind: HypercallKind, op: [u64; 3]| {
        let (status, answer) = daemon.call(domain, kind, op);
        assert_eq!(status, 0, "{answer}");
        answer
    };
    let made = call("g0", HypercallKind::TableCreate, [0, u64::from(PAGES), 0]);
    let table = Handle(made[1].as_u64().unwrap() as u32);
    let bind = BindOp {
        granter: DomId(1),
        table,
        first: Slot(0),
        tables: Slot(512),
        entries: PAGES,
    };
    call("driver", HypercallKind::TableBind, bind.encode());
    let create = |index, frame| {
        let create = CreateGrantOp {
            table,
            index,
            frame,
            readonly: false,
            io: false,
        };
        create.encode()
    };
    let revoke = |gref, how| RevokeOp { table, gref, how }.encode();
    let creates = |ops: u64, step: u64| {
        json!({ "kind": HypercallKind::GrantCreate as u32, "words": create(0, 0),
            "step": [step, step], "ops": ops })
    };
    let revokes = |ops: u64| {
        let words = revoke(GrantRef(0), Revocation::Refuse);
        let kind = HypercallKind::GrantRevoke as u32;
        json!({ "kind": kind, "words": words, "answers": true, "ops": ops })
    };
    let time = |calls: u64, each: serde_json::Value| {
        let order = json!({ "do": "time", "calls": calls, "each": each });
        daemon.order("g0", order).as_u64().expect("not refused")
    };
    for (name, step) in [("contiguous", 1), ("scattered", 2)] {
        for ops in [1, 16, 64, 128] {
            // The calls do not exceed the burst budget.
            let calls = 1500 / ops;
            let ns = time(calls, json!([creates(ops, step), revokes(ops)]));
            let page = ns / ops;
            println!("create and revoke, {name}, {ops} a call: {ns} ns, {page} a page");
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }
    // Forces the revocation of each grant in use once, because its entry is in quarantine
    // afterwards.
    for ops in [1, 16, 64] {
        let first = PAGES / 2 + ops as u32;
        for index in first..first + ops as u32 {
            let poke = json!({ "do": "poke", "slot": 513, "offset": index * 4, "value": 1 });
            assert_eq!(daemon.order("driver", poke), "done");
            call("g0", HypercallKind::GrantCreate, create(index, index));
        }
        let words = revoke(GrantRef::new(first, 1), Revocation::Force);
        let forced = json!({ "kind": HypercallKind::GrantRevoke as u32, "words": words,
            "step": [1], "ops": ops });
        let ns = time(1, json!([forced]));
        println!(
            "forced revocation in use, {ops} a call: {ns} ns, {} a page",
            ns / ops
        );
    }
    let audit = daemon.audit();
    assert_eq!(
        (&audit["forced"], &audit["leaked"]),
        (&json!(81), &json!(0))
    );
    daemon.down();
}
