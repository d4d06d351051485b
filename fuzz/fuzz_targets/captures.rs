//! See `fuzz_bodies::captures`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::captures(bytes));
