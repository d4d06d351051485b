//! Checksums.

use super::blank;
use super::common::{self, Build, any_build, frame_of};
use net::packet::checksum::{
    FinishError, Sum, finish, finish_in_place, fold, pseudo_v4, pseudo_v6,
};
use nic::frame::SNAPSHOT_MAX;
use nic::{Checksum, Gso, GsoKind};
use proptest::prelude::*;

/// The simplest Internet checksum.
fn reference(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn pseudo_headers_are_as_the_rfcs_have_them() {
    let v4 = [10, 0, 0, 1, 10, 0, 0, 2, 0, 6, 0x12, 0x34];
    let sum = pseudo_v4(common::SRC4.into(), common::DST4.into(), 6, 0x1234);
    assert_eq!(fold(sum), reference(&v4));
    let tail = [0, 1, 0x12, 0x34, 0, 0, 0, 17];
    let v6 = [&common::SRC6[..], &common::DST6, &tail].concat();
    let sum = pseudo_v6(common::SRC6.into(), common::DST6.into(), 17, 0x11234);
    assert_eq!(fold(sum), reference(&v6));
}

#[test]
fn checksum_folding_propagates_all_carries() {
    assert_eq!(fold(0), 0);
    assert_eq!(fold(0xffff), 0xffff);
    assert_eq!(fold(0x1_0000), 1);
    assert_eq!(fold(0x1_ffff), 1);
    assert_eq!(fold(0xffff_ffff), 0xffff);
    assert_eq!(fold(0xfffe_0003), 2);
}

#[test]
fn a_checksum_is_never_zero() {
    assert_eq!(Sum::new(0xffff).finish(), 0xffff);
    assert_eq!(Sum::new(0).finish(), 0xffff);
    assert_eq!(Sum::new(1).finish(), 0xfffe);
}

#[test]
fn only_blank_checksums_are_filled_in() {
    let bytes = Build::tcp4(b"data").bytes();
    for state in [Checksum::Unknown, Checksum::Valid] {
        let mut frame = frame_of(&bytes, &[]);
        frame.offload.checksum = state;
        assert_eq!(finish(&mut frame), Ok(()));
        assert_eq!(frame.to_vec().unwrap(), bytes);
        assert_eq!(frame.offload.checksum, state);
    }
}

#[test]
fn a_field_outside_the_copied_bytes_is_refused() {
    let bytes = vec![7; 300];
    let attempt = |start, offset| {
        let mut frame = frame_of(&bytes, &[]);
        frame.offload.checksum = Checksum::Blank { start, offset };
        finish(&mut frame)
    };
    assert_eq!(attempt(34, 92), Ok(()));
    for (start, offset) in [(34, 93), (127, 0), (200, 16), (65535, 65535), (0, 65535)] {
        assert_eq!(attempt(start, offset), Err(FinishError::FieldOutsideHeader));
    }
    let mut short = frame_of(&[0; 51], &[]);
    short.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    assert_eq!(finish(&mut short), Err(FinishError::FieldOutsideHeader));
}

#[test]
fn gso_frame_keeps_a_blank_checksum() {
    let mut frame = frame_of(&[0; 200], &[]);
    frame.offload.checksum = Checksum::Blank {
        start: 34,
        offset: 16,
    };
    frame.offload.gso = Some(Gso {
        kind: GsoKind::Tcp4,
        size: 10,
    });
    assert_eq!(finish(&mut frame), Err(FinishError::Segmented));
}

proptest! {
    #[test]
    fn sums_of_parts_are_the_sum(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        mut cuts in prop::collection::vec(0usize..300, 0..5),
        initial in any::<u16>(),
    ) {
        cuts.sort_unstable();
        let mut sum = Sum::new(initial.into());
        let mut at = 0;
        for (index, cut) in cuts.into_iter().chain([bytes.len()]).enumerate() {
            let end = cut.clamp(at, bytes.len());
            if index % 2 == 0 {
                sum.add_bytes(&bytes[at..end]);
            } else {
                sum.add(common::area_of(&bytes[at..end])).unwrap();
            }
            at = end;
        }
        let whole = [&initial.to_be_bytes()[..], &bytes].concat();
        // Zero has two forms, both valid.
        prop_assert_eq!(sum.folded() % 0xffff, reference(&whole) % 0xffff);
    }

    /// Compares the checksum with an oracle that does not use frames.
    #[test]
    fn checksums_at_any_offset_are_correct(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        mut cuts in prop::collection::vec(0usize..400, 0..5),
        start in 0u16..420,
        offset in 0u16..420,
        in_place: bool,
    ) {
        cuts.sort_unstable();
        cuts.iter_mut().for_each(|cut| *cut = (*cut).min(bytes.len()));
        let mut frame = frame_of(&bytes, &cuts);
        frame.offload.checksum = Checksum::Blank { start, offset };
        let done = match in_place {
            true => finish_in_place(&mut frame),
            false => finish(&mut frame),
        };
        let (start, field) = (usize::from(start), usize::from(start + offset));
        let writable = if in_place { bytes.len() } else { bytes.len().min(SNAPSHOT_MAX) };
        let mut expected = bytes.clone();
        if field + 2 > writable {
            prop_assert_eq!(done, Err(FinishError::FieldOutsideHeader));
            prop_assert_ne!(frame.offload.checksum, Checksum::Unknown);
        } else {
            let checksum = match !reference(&bytes[start..]) {
                0 => 0xffff,
                checksum => checksum,
            };
            expected[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
            prop_assert_eq!(done, Ok(()));
            prop_assert_eq!(frame.offload.checksum, Checksum::Unknown);
        }
        prop_assert_eq!(frame.to_vec().unwrap(), expected);
    }

    #[test]
    fn blank_checksums_are_filled_in_correctly(
        build in any_build(),
        mut cuts in prop::collection::vec(0usize..250, 0..5),
    ) {
        cuts.sort_unstable();
        let mut bytes = build.bytes();
        let mut frame = frame_of(&bytes, &cuts);
        frame.offload.checksum = blank(&build, &mut bytes);
        prop_assume!(build.transport_at() + 18 <= SNAPSHOT_MAX);
        let at = build.transport_at() + 16;
        let offload = frame.offload;
        frame = frame_of(&bytes, &cuts);
        frame.offload = offload;
        prop_assert_eq!(finish(&mut frame), Ok(()));
        let mut done = frame.to_vec().unwrap();
        prop_assert_eq!(frame.offload.checksum, Checksum::Unknown);
        let pseudo = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        prop_assert_eq!(reference(&[&pseudo.to_be_bytes()[..], &{
            let mut part = done[build.transport_at()..].to_vec();
            if part.len() % 2 == 1 { part.push(0); }
            part
        }].concat()) % 0xffff, 0);
        done[at..at + 2].copy_from_slice(&bytes[at..at + 2]);
        prop_assert_eq!(done, bytes);
    }
}
