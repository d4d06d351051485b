//! See `fuzz_bodies::state`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::state(bytes));
