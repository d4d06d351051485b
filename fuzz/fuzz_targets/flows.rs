//! See `fuzz_bodies::flows`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::flows(bytes));
