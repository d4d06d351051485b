//! Rates and bursts in each direction, from the network and the runtime.

use super::bench::{Bench, Fake};
use crate::error::ErrorCode;
use serde_json::{Value, json};

/// Keys of an interface: rate and burst to the container, then from it.
const KEYS: [&str; 4] = [
    "rate_to_guest_mbps",
    "burst_to_guest_bytes",
    "rate_mbps",
    "burst_bytes",
];

/// Returns a bench and a machine, with addresses to assign.
fn bench() -> (Bench, Fake) {
    let bench = Bench::new();
    let machine = Fake::up(&bench.socket());
    bench.set_ipam_addresses(&["10.99.0.9/24 10.99.0.1"], json!([]));
    (bench, machine)
}

/// Returns the limits that the machine receives for a container with this configuration.
fn vif_keys(more: Value) -> [Value; 4] {
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
fn bits_become_megabits_and_bytes() {
    let all = json!({
        "ingressRate": 10_500_000, "ingressBurst": 800_001,
        "egressRate": 1, "egressBurst": 1,
    });
    let expected = keys([Some(10.5), Some(100_001.0), Some(0.000_001), Some(1.0)]);
    // The runtime sets limits for one container, and the network's configuration for all
    // containers.
    assert_eq!(
        vif_keys(json!({ "runtimeConfig": { "bandwidth": all } })),
        expected
    );
    assert_eq!(vif_keys(json!({ "bandwidth": all })), expected);
}

#[test]
fn unset_or_zero_is_no_limit() {
    for none in [
        json!(null),
        json!({}),
        json!({ "ingressRate": 0, "egressRate": 0 }),
        json!({ "ingressRate": null, "ingressBurst": 9, "egressBurst": 4_294_967_295_u32 }),
    ] {
        let runtime = json!({ "runtimeConfig": { "bandwidth": none } });
        assert_eq!(vif_keys(runtime), keys([None; 4]), "{none}");
        assert_eq!(vif_keys(json!({ "bandwidth": none })), keys([None; 4]));
    }
    // Only one direction is limited, with unset bursts as runtimes write them.
    for burst in [json!(null), json!(0), json!(i32::MAX), json!(u32::MAX)] {
        let one = json!({ "ingressrate": 8, "ingressburst": burst });
        let found = vif_keys(json!({ "runtimeConfig": { "bandwidth": one } }));
        assert_eq!(found, keys([Some(0.000_008), None, None, None]));
    }
    let largest = json!({ "EgressRate": 8, "EgressBurst": i32::MAX - 1 });
    let found = vif_keys(json!({ "bandwidth": largest }));
    let burst = Some(268_435_456.0);
    assert_eq!(found, keys([None, None, Some(0.000_008), burst]));
}

/// Neither the network's limit nor the container's is exceeded.
#[test]
fn the_lower_of_two_rates_applies_with_its_burst() {
    let of = |rate: u32, burst: u32| json!({ "ingressRate": rate, "ingressBurst": burst });
    let both = |network: Value, runtime: Value| {
        vif_keys(json!({ "bandwidth": network, "runtimeConfig": { "bandwidth": runtime } }))
    };
    let low = keys([Some(1.0), Some(10.0), None, None]);
    assert_eq!(both(of(1_000_000, 80), of(2_000_000, 800)), low);
    assert_eq!(both(of(2_000_000, 800), of(1_000_000, 80)), low);
    let unnamed = keys([Some(1.0), None, None, None]);
    assert_eq!(both(of(2_000_000, 800), of(1_000_000, 0)), unnamed);
    // The network can also set the keys of an interface directly.
    let vif = json!({ "rate_mbps": 3, "burst_bytes": 5000 });
    for (rate, expected) in [
        (4_000_000, [json!(3), json!(5000)]),
        (2_500_000, [json!(2.5), Value::Null]),
    ] {
        let runtime = json!({ "bandwidth": { "egressRate": rate } });
        let found = vif_keys(json!({ "vif": vif, "runtimeConfig": runtime }));
        assert_eq!(found[2..], expected);
    }
    // A value that is not a rate is passed on, and the machine rejects it.
    let vif = json!({ "rate_mbps": "fast" });
    let bandwidth = json!({ "egressRate": 1 });
    let found = vif_keys(json!({ "vif": vif, "bandwidth": bandwidth }));
    assert_eq!(found[2], "fast");
}

#[test]
fn an_invalid_rate_is_named_and_takes_no_address() {
    let (bench, machine) = bench();
    for (bandwidth, wanted, what) in [
        (
            json!({ "ingressRate": -1 }),
            ErrorCode::Decode,
            "integer `-1`",
        ),
        (json!({ "egressBurst": 1.5 }), ErrorCode::Decode, "1.5"),
        (json!({ "egressRate": "10M" }), ErrorCode::Decode, "\"10M\""),
        (json!("10M"), ErrorCode::Decode, "\"10M\""),
        (
            json!({ "egressRate": 1_000_000_000_000_001_u64 }),
            ErrorCode::Config,
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
            // DEL still succeeds.
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
