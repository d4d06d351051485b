//! See `fuzz_bodies::netif`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::netif(bytes));
