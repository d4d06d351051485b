//! Rates and bursts, each way, from who may name them.

use super::bench::{Bench, Fake};
use crate::failure::Code;
use serde_json::{Value, json};

/// Keys of an interface: to the container, from it.
const KEYS: [&str; 4] = [
    "rate_to_guest_mbps",
    "burst_to_guest_bytes",
    "rate_mbps",
    "burst_bytes",
];

/// A bench and a machine, with addresses to give.
fn bench() -> (Bench, Fake) {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    bench.gives(&["10.99.0.9/24 10.99.0.1"], json!([]));
    (bench, machine)
}

/// What the machine is told of the limits of a container that is added like that.
fn told(more: Value) -> [Value; 4] {
    let (bench, machine) = bench();
    let conf = bench.conf(more);
    bench.of("ADD", "c1", &conf).done();
    let vif = machine.last()["vif"][0].clone();
    bench.of("DEL", "c1", &conf).done();
    assert!(machine.guests().is_empty());
    KEYS.map(|key| vif[key].clone())
}

fn keys(values: [Option<f64>; 4]) -> [Value; 4] {
    let [to_guest, burst_to_guest, rate, burst] = values;
    let bytes = |bytes: Option<f64>| json!(bytes.map(|bytes| bytes as u64));
    [
        json!(to_guest),
        bytes(burst_to_guest),
        json!(rate),
        bytes(burst),
    ]
}

#[test]
fn bits_become_megabits_and_bytes_each_way() {
    let all = json!({
        "ingressRate": 10_500_000, "ingressBurst": 800_001,
        "egressRate": 1, "egressBurst": 1,
    });
    let expected = keys([Some(10.5), Some(100_001.0), Some(0.000_001), Some(1.0)]);
    // By the runtime, for one container; by the network's configuration, for all of them.
    assert_eq!(
        told(json!({ "runtimeConfig": { "bandwidth": all } })),
        expected
    );
    assert_eq!(told(json!({ "bandwidth": all })), expected);
}

#[test]
fn what_is_left_out_or_nothing_is_no_limit() {
    for none in [
        json!(null),
        json!({}),
        json!({ "ingressRate": 0, "egressRate": 0 }),
        json!({ "ingressRate": null, "ingressBurst": 9, "egressBurst": 4_294_967_295_u32 }),
    ] {
        let runtime = json!({ "runtimeConfig": { "bandwidth": none } });
        assert_eq!(told(runtime), keys([None; 4]), "{none}");
        assert_eq!(told(json!({ "bandwidth": none })), keys([None; 4]));
    }
    // One way only; bursts that nobody has named, as runtimes write them.
    for burst in [json!(null), json!(0), json!(i32::MAX), json!(u32::MAX)] {
        let one = json!({ "ingressrate": 8, "ingressburst": burst });
        let told = told(json!({ "runtimeConfig": { "bandwidth": one } }));
        assert_eq!(told, keys([Some(0.000_008), None, None, None]));
    }
    let largest = json!({ "EgressRate": 8, "EgressBurst": i32::MAX - 1 });
    let told = told(json!({ "bandwidth": largest }));
    let burst = Some(268_435_456.0);
    assert_eq!(told, keys([None, None, Some(0.000_008), burst]));
}

/// Neither the network nor the container gets more than it may.
#[test]
fn of_two_rates_the_lower_one_holds_with_its_burst() {
    let of = |rate: u32, burst: u32| json!({ "ingressRate": rate, "ingressBurst": burst });
    let both = |network: Value, runtime: Value| {
        told(json!({ "bandwidth": network, "runtimeConfig": { "bandwidth": runtime } }))
    };
    let low = keys([Some(1.0), Some(10.0), None, None]);
    assert_eq!(both(of(1_000_000, 80), of(2_000_000, 800)), low);
    assert_eq!(both(of(2_000_000, 800), of(1_000_000, 80)), low);
    let unnamed = keys([Some(1.0), None, None, None]);
    assert_eq!(both(of(2_000_000, 800), of(1_000_000, 0)), unnamed);
    // The keys of an interface, which are the network's, too.
    let vif = json!({ "rate_mbps": 3, "burst_bytes": 5000 });
    for (rate, expected) in [
        (4_000_000, [json!(3), json!(5000)]),
        (2_500_000, [json!(2.5), Value::Null]),
    ] {
        let runtime = json!({ "bandwidth": { "egressRate": rate } });
        let told = told(json!({ "vif": vif, "runtimeConfig": runtime }));
        assert_eq!(told[2..], expected);
    }
    // What is no rate stays, for the machine to say so.
    let vif = json!({ "rate_mbps": "fast" });
    let bandwidth = json!({ "egressRate": 1 });
    let told = told(json!({ "vif": vif, "bandwidth": bandwidth }));
    assert_eq!(told[2], "fast");
}

#[test]
fn what_is_no_rate_is_named_and_takes_no_address() {
    let (bench, machine) = bench();
    for (bandwidth, wanted, what) in [
        (json!({ "ingressRate": -1 }), Code::Decode, "integer `-1`"),
        (json!({ "egressBurst": 1.5 }), Code::Decode, "1.5"),
        (json!({ "egressRate": "10M" }), Code::Decode, "\"10M\""),
        (json!("10M"), Code::Decode, "\"10M\""),
        (
            json!({ "egressRate": 1_000_000_000_000_001_u64 }),
            Code::Config,
            "`bandwidth.egressRate` is 1000000000000001",
        ),
    ] {
        for more in [
            json!({ "bandwidth": bandwidth }),
            json!({ "runtimeConfig": { "bandwidth": bandwidth } }),
        ] {
            let conf = bench.conf(more);
            let (code, why) = bench.of("ADD", "c1", &conf).failed();
            assert_eq!(code, wanted as u64, "{bandwidth}: {why}");
            assert!(why.contains(what), "{why}");
            // It keeps nobody from going.
            bench.of("DEL", "c1", &conf).done();
        }
    }
    assert!(machine.guests().is_empty());
    let calls = bench.ipam_calls();
    assert!(
        calls.iter().all(|call| call.starts_with("DEL")),
        "{calls:?}"
    );
}
