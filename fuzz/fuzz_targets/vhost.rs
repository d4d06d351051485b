//! See `fuzz_bodies::vhost`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::vhost(bytes));
