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
//!
//! `fuzz/fuzz_targets` runs them under libFuzzer, `tests/properties.rs` on random bytes with any
//! compiler, together with every input that once found something.

mod bridge;
mod frames;
mod hypercalls;
mod input;
mod lro;
mod ring;

pub use bridge::bridge;
pub use frames::frames;
pub use hypercalls::hypercalls;
pub use lro::lro;
pub use ring::ring;

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
