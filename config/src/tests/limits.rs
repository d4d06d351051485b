//! Tests of the limits of a guest's interface in each direction.

use super::{errors, mistake};
use crate::domain::{BURST_BYTES, DriverConfig, FrameLimit, VifConfig};
use crate::live::{self, reload};
use crate::parse::{parse, single_file};

/// Returns the file of a machine with one guest and `workers` workers. The guest's interface has
/// these keys.
fn text(workers: u32, keys: &str) -> String {
    format!(
        "[driver]\nworkers = {workers}\n[[guest]]\nname = \"a\"\n[[guest.vif]]\n\
         endpoint = \"sink\"\n{keys}"
    )
}

/// Returns the driver domain's configuration of this guest's interface.
fn vif_config(workers: u32, keys: &str) -> VifConfig {
    let config = parse("f", &text(workers, keys)).unwrap();
    let machine = config.machine().unwrap();
    let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    driver.vifs[0].clone()
}

#[test]
fn each_direction_has_a_rate_and_a_burst() {
    let none = vif_config(1, "");
    assert_eq!((none.settings.rate_mbps, none.to_guest), (None, None));
    assert_eq!(none.settings.burst_bytes, 131_072);
    let all = "rate_mbps = 8\nburst_bytes = 1\nrate_to_guest_mbps = 2.5\n\
               burst_to_guest_bytes = 4294967295\n";
    let limit = |rate_mbps, burst_bytes| {
        Some(FrameLimit {
            rate_mbps,
            burst_bytes,
        })
    };
    let both = vif_config(1, all);
    assert_eq!(
        (both.settings.rate_mbps, both.settings.burst_bytes),
        (Some(8.0), 1)
    );
    assert_eq!(both.to_guest, limit(2.5, u32::MAX));
    // Workers share the rate. Each has the whole burst.
    let shared = vif_config(4, all);
    assert_eq!(
        (shared.settings.rate_mbps, shared.settings.burst_bytes),
        (Some(2.0), 1)
    );
    assert_eq!(shared.to_guest, limit(0.625, u32::MAX));
    // The default burst is a tenth of a second, up to the maximum.
    for (mbps, burst) in [
        ("0.001", BURST_BYTES),
        ("100", 1_250_000),
        ("1e9", u32::MAX),
    ] {
        let config = vif_config(1, &format!("rate_to_guest_mbps = {mbps}\n"));
        assert_eq!(config.to_guest.map(|limit| limit.burst_bytes), Some(burst));
    }
}

/// Default limits are omitted, because a driver domain of an older version rejects the keys.
#[test]
fn default_limits_are_omitted() {
    let config = serde_json::to_value(vif_config(1, "")).unwrap();
    assert_eq!(
        (config.get("burst_bytes"), config.get("to_guest")),
        (None, None)
    );
}

#[test]
fn invalid_limits_have_a_line_and_a_remedy() {
    let with = |keys: &str| mistake("netns = \"a\"\n", &format!("netns = \"a\"\n{keys}\n"));
    for (keys, says) in [
        (
            "rate_to_guest_mbps = 0",
            "`rate_to_guest_mbps` is 0; write a number above 0",
        ),
        (
            "rate_to_guest_mbps = -5.5",
            "`rate_to_guest_mbps` is -5.5; write a number above 0",
        ),
        (
            "rate_to_guest_mbps = 2e9",
            "; write a number above 0 and up to 1000000000",
        ),
        (
            "rate_to_guest_mbps = nan",
            "`rate_to_guest_mbps` is NaN; write a number above 0",
        ),
        ("rate_to_guest_mbps = \"1\"", "write a number"),
        (
            "burst_bytes = 0",
            "`burst_bytes` is 0; write a number from 1 to 4294967295",
        ),
        (
            "burst_bytes = 4294967296",
            "write a whole number that is not negative",
        ),
        (
            "burst_to_guest_bytes = 9",
            "without `rate_to_guest_mbps`; write both",
        ),
        (
            "rate_to_guest_mbps = 1\nburst_to_guest_bytes = 0",
            "`burst_to_guest_bytes` is 0; write a number from 1",
        ),
    ] {
        let message = with(keys);
        let message = mistake_at(&message);
        assert!(message.contains(says), "{keys}: {message}");
    }
}

/// Returns the message without its line, which must be the first or second key of the interface.
#[track_caller]
fn mistake_at(message: &str) -> &str {
    let place = ["f.toml:14: ", "f.toml:15: "];
    let what = place.iter().find_map(|place| message.strip_prefix(place));
    what.unwrap_or_else(|| panic!("{message}"))
}

/// The message is reported at both lines, because either key can be the wrong one.
#[test]
fn a_dedicated_queue_cannot_be_limited() {
    let text = "[driver]\ngrants = \"counted\"\n[[nic]]\nname = \"wire\"\nkind = \"xdp\"\n\
                netns = \"w\"\nqueues = \"vmq\"\nvmq_queues = 3\n[[guest]]\nname = \"a\"\n\
                [[guest.vif]]\nendpoint = \"sink\"\nrate_to_guest_mbps = 5\nmtu = 1500\n\
                pdev = \"wire:2\"\n";
    let message = errors(text);
    let lines: Vec<&str> = message.lines().collect();
    for (line, at) in lines.iter().zip([13, 15]) {
        let start = format!(
            "f.toml:{at}: [[guest]] 1, vif 1: `pdev` is \"wire:2\" and `rate_to_guest_mbps` is 5; \
             leave one of them out"
        );
        assert!(line.starts_with(&start), "{message}");
    }
    assert_eq!(lines.len(), 2, "{message}");
    for key in ["rate_to_guest_mbps = 5\n", "pdev = \"wire:2\"\n"] {
        parse("f", &text.replacen(key, "", 1)).unwrap();
    }
}

#[test]
fn limits_change_in_place() {
    let before = text(1, "");
    let config = parse("f", &before).unwrap();
    let machine = live::machine(&config, &single_file("f", &before)).unwrap();
    let live = live::LiveSpec::from(machine.live.unwrap());
    let running = live::LiveConfig::of(&live).unwrap();
    for keys in [
        "rate_mbps = 8\nburst_bytes = 9\n",
        "burst_bytes = 9\n",
        "rate_to_guest_mbps = 8\n",
        "rate_to_guest_mbps = 8\nburst_to_guest_bytes = 9\n",
    ] {
        let files = single_file("f", &text(1, keys));
        let difference = reload::difference(&live, &running, &files).unwrap();
        assert!(difference.to_attach[0].in_place, "{keys}");
        let mut becomes = running.clone();
        becomes.change(&difference.to_attach[0].guest).unwrap();
    }
    let files = single_file("f", &text(1, "rate_to_guest_mbps = 8\nweight = 2\n"));
    let difference = reload::difference(&live, &running, &files).unwrap();
    assert!(!difference.to_attach[0].in_place);
}
