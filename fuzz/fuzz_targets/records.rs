//! See `fuzz_bodies::records`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::records(bytes));
