//! See `fuzz_bodies::ring`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::ring(bytes));
