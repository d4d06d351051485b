//! What the fuzz targets do with their bytes. Each body plays a hostile peer for one part of
//! Grantway and panics if that part breaks a promise; none of them needs more than memory.
//!
//! | body | the peer | attacks of the field's list |
//! |---|---|---|
//! | [`ring()`] | either end of a ring | 1, 3, 4 |
//! | [`netif()`] | a guest towards a netback, a driver domain towards a netfront | 1 – 9, 13, 24, 28 – 31 |
//! | [`hypercalls()`] | a domain towards the monitor | 4, 13 – 20, 24, 28, 29 |
//! | [`frames()`] | a sender of frames | 7, 8, 28, 29 |
//! | [`lro()`] | a sender of TCP | 7, 8, 29, 31 |
//! | [`bridge()`] | a station, a guest | 29, 32, 33 |
//! | [`config()`] | who writes a configuration | – |
//! | [`captures()`] | who recorded a capture file | 28, 29 |
//! | [`profiles()`] | who gives a profile, as a file or as a participant | 28 |
//! | [`control()`] | who speaks to the control socket, or to a domain's mailbox | 28 |
//! | [`records()`] | the manager or netd towards the core, and the core towards them | 28, 29 |
//! | [`state()`] | the author of a state file | 28 |
//! | [`sessions()`] | a participant in a profile | 28 |
//! | [`xenstore()`] | a xenstore, a guest's nodes and control ring | 24, 28, 29 |
//! | [`containers()`] | a container runtime, podman, an IPAM plugin | 28 |
//!
//! `fuzz/fuzz_targets` runs them under libFuzzer, `tests/properties.rs` on random bytes with any
//! compiler, together with every input that once found something; the program `smoke` changes
//! inputs that are kept, for as long as it is told.

mod bridge;
mod captures;
mod config;
mod containers;
mod control;
mod frames;
mod hypercalls;
mod input;
mod lro;
mod profiles;
mod records;
mod ring;
mod sessions;
mod state;
mod xenstore;

pub use bridge::bridge;
pub use captures::captures;
pub use config::config;
pub use containers::containers;
pub use control::control;
pub use frames::frames;
pub use hypercalls::hypercalls;
pub use lro::lro;
pub use profiles::profiles;
pub use records::records;
pub use ring::ring;
pub use sessions::sessions;
pub use state::state;
pub use xenstore::xenstore;

/// What is done with one input.
pub type Body = fn(&[u8]);

/// Every body, by its name.
pub const BODIES: [(&str, Body); 15] = [
    ("ring", ring),
    ("netif", netif),
    ("hypercalls", hypercalls),
    ("frames", frames),
    ("bridge", bridge),
    ("lro", lro),
    ("config", config),
    ("captures", captures),
    ("profiles", profiles),
    ("control", control),
    ("records", records),
    ("state", state),
    ("sessions", sessions),
    ("xenstore", xenstore),
    ("containers", containers),
];

/// The wire format and both ends of a virtual interface; the first byte chooses.
pub fn netif(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else {
        return;
    };
    match choice % 4 {
        0 => vif::testing::hostile_words(rest),
        1 => vif::testing::hostile_records(rest),
        2 => vif::testing::hostile_frontend(rest),
        _ => vif::testing::hostile_backend(rest),
    }
}
