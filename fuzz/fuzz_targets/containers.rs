//! See `fuzz_bodies::containers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::containers(bytes));
