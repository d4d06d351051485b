//! See `fuzz_bodies::kernel`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::kernel(bytes));
