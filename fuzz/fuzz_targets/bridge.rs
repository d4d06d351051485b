//! See `fuzz_bodies::bridge`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::bridge(bytes));
