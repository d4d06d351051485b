//! The bodies of the fuzz targets. Each body plays a hostile peer of one part of Grantway, driven
//! by its input, and panics if that part breaks a promise. Bodies use memory only; `vhost` also
//! uses sockets and a memfd.
//!
//! | body | peer | rows of the attack table in SPECIFICATION |
//! |---|---|---|
//! | [`ring()`] | either end of a ring | 1, 3, 4 |
//! | [`netif()`] | a guest towards a netback, a driver domain towards a netfront | 1 – 9, 13, 24, 28 – 31 |
//! | [`hypercalls()`] | a domain towards the monitor | 4, 13 – 20, 24, 28, 29 |
//! | [`frames()`] | a sender of frames | 7, 8, 28, 29 |
//! | [`lro()`] | a sender of TCP | 7, 8, 29, 31 |
//! | [`bridge()`] | a station, a guest | 29, 32, 33 |
//! | [`flows()`] | a station, a guest, the driver domain that left the table | 28, 29 |
//! | [`config()`] | the author of a configuration file | – |
//! | [`captures()`] | the author of a capture file | 28, 29 |
//! | [`profiles()`] | the author of a profile file, an agent | 28 |
//! | [`control()`] | a client of the control socket, a domain at its mailbox | 28 |
//! | [`records()`] | the manager or netd towards the core, and the core towards them | 28, 29 |
//! | [`state()`] | the author of a state file | 28 |
//! | [`sessions()`] | a participant in a profile | 28 |
//! | [`xenstore()`] | a xenstore, a guest's nodes and control ring | 24, 28, 29 |
//! | [`containers()`] | a container runtime, podman, an IPAM plugin | 28 |
//! | [`metrics()`] | an HTTP client of the metrics, a domain that counts | 28 |
//! | [`kernel()`] | rtnetlink, nf_tables and iptables of a kernel | 28 |
//! | [`dma()`] | a device at the driver's rings, a driver at a device's | 1, 3, 4, 28, 29 |
//! | [`vhost()`] | a virtual machine and its monitor | 1, 3, 4, 7, 8, 28 |
//!
//! `fuzz/fuzz_targets` runs the bodies under libFuzzer. `tests/properties.rs` runs them on random
//! bytes and on every kept regression. The program `smoke` mutates seeds and regressions for a
//! given time.

mod bridge;
mod captures;
mod config;
mod containers;
mod control;
mod dma;
mod flows;
mod frames;
mod hypercalls;
mod input;
mod kernel;
mod lro;
mod metrics;
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
pub use dma::dma;
pub use flows::flows;
pub use frames::frames;
pub use hypercalls::hypercalls;
pub use kernel::kernel;
pub use lro::lro;
pub use metrics::metrics;
pub use profiles::profiles;
pub use records::records;
pub use ring::ring;
pub use sessions::sessions;
pub use state::state;
pub use xenstore::xenstore;

/// Runs one input.
pub type Body = fn(&[u8]);

/// All bodies with their names.
pub const BODIES: [(&str, Body); 20] = [
    ("ring", ring),
    ("netif", netif),
    ("hypercalls", hypercalls),
    ("frames", frames),
    ("bridge", bridge),
    ("lro", lro),
    ("flows", flows),
    ("config", config),
    ("captures", captures),
    ("profiles", profiles),
    ("control", control),
    ("records", records),
    ("state", state),
    ("sessions", sessions),
    ("xenstore", xenstore),
    ("containers", containers),
    ("metrics", metrics),
    ("kernel", kernel),
    ("dma", dma),
    ("vhost", vhost),
];

/// Tests the back end with a hostile monitor or a hostile driver. The first byte selects one of
/// them.
pub fn vhost(bytes: &[u8]) {
    match bytes.split_first() {
        Some((choice, rest)) if choice % 2 == 0 => vhost_edge::testing::hostile::messages(rest),
        Some((_, rest)) => vhost_edge::testing::hostile::rings(rest),
        None => {}
    }
}

/// Tests the wire format or one end of a virtual interface. The first byte selects one of these
/// tests.
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
