//! See `fuzz_bodies::dma`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_bodies::dma(bytes));
