//! See `fuzz_bodies::hypercalls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::hypercalls(bytes));
