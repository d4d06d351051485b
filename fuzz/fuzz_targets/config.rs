//! See `fuzz_bodies::config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::config(bytes));
