//! See `fuzz_bodies::sessions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::sessions(bytes));
