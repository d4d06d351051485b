//! See `fuzz_bodies::control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::control(bytes));
