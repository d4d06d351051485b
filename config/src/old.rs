//! What files of earlier versions say: words that have other names now, which are accepted with a
//! warning, and keys that are gone, which are refused with what became of them.

/// Words of `grants` in `[driver]`, and what they are called now.
pub(crate) const GRANTS: [(&str, &str); 3] = [
    ("new", "counted"),
    ("shared", "unchecked"),
    ("mapped", "persistent"),
];

const TICKS: &str = "leave it out: a domain spins for `spin_us` and then sleeps; a NIC that is to \
                     be looked at by the clock has moderation = \"tick\" in [[nic]]";

/// Keys that are gone: section, key, what became of it.
const GONE: [(&str, &str, &str); 7] = [
    ("driver", "tick_us", TICKS),
    ("driver", "empty_ticks", TICKS),
    ("guest", "tick_us", TICKS),
    ("guest", "empty_ticks", TICKS),
    (
        "driver",
        "poll_budget",
        "leave it out: 64 frames are taken from one port before it is the next one's turn",
    ),
    (
        "driver",
        "notify_us",
        "leave it out: while a NIC has more frames, sleeping guests are woken at once where the \
         driver domain has `cpus` that no guest may use, else every 300 µs",
    ),
    (
        "lro",
        "hold_us",
        "leave it out: flush = \"t500\" holds packets for 500 µs, any other `flush` for 200 at the \
         most",
    ),
];

/// What became of a key that is gone.
pub(crate) fn gone(section: &str, key: &str) -> Option<&'static str> {
    let found = GONE
        .iter()
        .find(|(of, name, _)| (*of, *name) == (section, key));
    found.map(|(.., became)| *became)
}
