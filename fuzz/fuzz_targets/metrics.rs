//! See `fuzz_bodies::metrics`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::metrics(bytes));
