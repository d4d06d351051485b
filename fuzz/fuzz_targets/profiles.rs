//! See `fuzz_bodies::profiles`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::profiles(bytes));
