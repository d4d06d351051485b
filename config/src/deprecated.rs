//! Names of earlier versions: renamed words, which are accepted with a warning, and removed keys,
//! which are rejected with an explanation.

/// Renamed words: section, key, old word, new word.
const RENAMED_WORDS: [(&str, &str, &str, &str); 3] = [
    ("driver", "grants", "new", "counted"),
    ("driver", "grants", "shared", "unchecked"),
    ("driver", "grants", "mapped", "persistent"),
];

/// Returns the new name of a renamed word.
pub(crate) fn renamed(section: &str, key: &str, word: &str) -> Option<&'static str> {
    let mut all = RENAMED_WORDS.iter();
    let found = all.find(|(of, name, old, _)| (*of, *name, *old) == (section, key, word));
    found.map(|(.., new)| *new)
}

const TICKS_REMOVED: &str = "leave it out: a domain spins for `spin_us` and then sleeps; to \
                     poll a NIC at intervals, write moderation = \"tick\" in [[nic]]";

/// Removed keys: section, key, explanation.
const REMOVED_KEYS: [(&str, &str, &str); 7] = [
    ("driver", "tick_us", TICKS_REMOVED),
    ("driver", "empty_ticks", TICKS_REMOVED),
    ("guest", "tick_us", TICKS_REMOVED),
    ("guest", "empty_ticks", TICKS_REMOVED),
    (
        "driver",
        "poll_budget",
        "leave it out: the driver reads up to 64 frames from one port before it serves the next",
    ),
    (
        "driver",
        "notify_us",
        "leave it out: while a NIC has more frames, sleeping guests are woken immediately if \
         the driver domain has `cpus` that no guest may use, otherwise every 300 µs",
    ),
    (
        "lro",
        "hold_us",
        "leave it out: flush = \"t500\" holds packets for 500 µs, any other `flush` for at \
         most 200",
    ),
];

/// Returns the explanation for a removed key.
pub(crate) fn removed(section: &str, key: &str) -> Option<&'static str> {
    let found = REMOVED_KEYS
        .iter()
        .find(|(of, name, _)| (*of, *name) == (section, key));
    found.map(|(.., explanation)| *explanation)
}
