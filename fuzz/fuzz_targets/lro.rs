//! See `fuzz_bodies::lro`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::lro(bytes));
