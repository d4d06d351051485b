//! See `fuzz_bodies::xenstore`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::xenstore(bytes));
