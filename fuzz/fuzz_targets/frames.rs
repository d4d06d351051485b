//! See `fuzz_bodies::frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::frames(bytes));
