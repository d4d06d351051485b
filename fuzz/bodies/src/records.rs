//! Records and reports that the core exchanges with the manager and netd.

use crate::input::Input;
use abi::core::{
    BYTES, CoreMessage, CoreRequest, CoreStatus, Field, Message, NetdReply, NetdRequest, Record,
    VERSION, WORDS, decode_report, encode_report,
};
use abi::machine::Audit;

/// Decodes bytes as every kind of record and report. Each is rejected, or decodes to one message,
/// whose encoding is the same bytes.
pub fn records(bytes: &[u8]) {
    every_kind(bytes);
    let mut input = Input::new(bytes);
    let mut words = vec![u64::from(VERSION) << 32 | u64::from(input.below(24) as u32)];
    words.extend((1..WORDS).map(|_| word(&mut input)));
    let record: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(record.len(), BYTES);
    every_kind(&record);
    has_one_form::<CoreStatus>(bytes);
    has_one_form::<Audit>(bytes);
}

/// Returns mostly a valid value of a field.
fn word(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        255 => input.u64(),
        254 => u64::from(u32::MAX),
        small @ ..=63 => u64::from(small),
        _ => 0,
    }
}

fn every_kind(bytes: &[u8]) {
    is_canonical::<CoreRequest>(bytes);
    is_canonical::<CoreMessage>(bytes);
    is_canonical::<NetdRequest>(bytes);
    is_canonical::<NetdReply>(bytes);
}

fn is_canonical<M: Message>(bytes: &[u8]) {
    if let Ok(record) = Record::<M>::decode(bytes) {
        assert_eq!(record.encode().as_slice(), bytes);
    }
}

fn has_one_form<T: Field>(bytes: &[u8]) {
    if let Some(report) = decode_report::<T>(bytes) {
        assert_eq!(encode_report(&report), bytes);
    }
}
