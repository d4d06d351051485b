//! Tests of every routine against plain byte copies, at the edges of mapped memory, and with
//! faults.

use super::bulk::has_avx2;
use super::short::SHORT_MAX;
use super::sum::Engine;
use super::{avx2, copy_64, copy_96, fill, load_u32, load_u64, plain, short, sse2, sum};
use super::{store_2, store_3, store_u32, store_u64};
use crate::area::Area;
use abi::PAGE;

/// The longest copy: more than a page, and not a multiple of any block size.
const LEN_MAX: usize = 4200;

type Copy = unsafe fn(*mut u8, *const u8, usize) -> bool;
type Snapshot = unsafe fn(*mut u8, *const u8) -> bool;

/// Returns every engine that this processor supports, with its range of lengths.
fn engines() -> Vec<(&'static str, Copy, std::ops::RangeInclusive<usize>)> {
    let mut all: Vec<(&str, Copy, _)> = vec![
        ("short", short::copy, 0..=SHORT_MAX),
        ("sse2", sse2::copy, SHORT_MAX + 1..=LEN_MAX),
        ("best", super::copy, 0..=LEN_MAX),
        ("plain", plain::copy, 0..=LEN_MAX),
    ];
    if has_avx2() {
        all.push(("avx2", avx2::copy, SHORT_MAX + 1..=LEN_MAX));
    }
    all
}

/// Accessible pages between two guard pages.
struct Guarded {
    start: *mut u8,
    len: usize,
}

impl Guarded {
    fn new(pages: usize) -> Self {
        let area = Area::anonymous((pages + 2) * PAGE).unwrap().span();
        let guarded = Self {
            start: area.as_ptr().wrapping_add(PAGE),
            len: pages * PAGE,
        };
        protect(guarded.start.wrapping_sub(PAGE), PAGE, libc::PROT_NONE);
        protect(guarded.end(), PAGE, libc::PROT_NONE);
        guarded
    }

    fn end(&self) -> *mut u8 {
        self.start.wrapping_add(self.len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the pages belong to this test, and nothing else accesses them while the slice
        // exists.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

fn protect(start: *mut u8, len: usize, protection: i32) {
    // SAFETY: the pages belong to an area that only this test uses.
    assert_eq!(unsafe { libc::mprotect(start.cast(), len, protection) }, 0);
}

/// Returns byte `i` of a pattern with a period that no block size divides.
fn pattern(i: usize) -> u8 {
    (i % 251) as u8 ^ (i / 251) as u8
}

#[test]
fn copies_are_exact_at_every_length_and_alignment() {
    const MARGIN: usize = 64;
    let (mut src, mut dst) = (Guarded::new(2), Guarded::new(2));
    for (i, byte) in src.bytes().iter_mut().enumerate() {
        *byte = pattern(i);
    }
    for (name, copy, lengths) in engines() {
        for len in lengths {
            // Each length uses every source alignment with one destination alignment. Over 64
            // lengths, all 64 × 64 pairs occur.
            for src_align in 0..64 {
                let dst_align = (src_align + len) % 64;
                let range = MARGIN + dst_align..MARGIN + dst_align + len;
                let visible = 0..range.end + MARGIN;
                dst.bytes()[visible.clone()].fill(0xee);
                // SAFETY: both ranges lie in this test's pages.
                let ok = unsafe {
                    copy(
                        dst.start.wrapping_add(range.start),
                        src.start.wrapping_add(src_align),
                        len,
                    )
                };
                assert!(ok, "{name} {len}");
                let expected = &src.bytes()[src_align..src_align + len];
                let got = dst.bytes();
                assert!(
                    &got[range.clone()] == expected,
                    "{name} {len} {src_align} {dst_align}"
                );
                let outside = got[visible.start..range.start]
                    .iter()
                    .chain(&got[range.end..visible.end]);
                assert!(
                    { outside }.all(|&byte| byte == 0xee),
                    "{name} {len} wrote outside"
                );
            }
        }
    }
}

#[test]
fn copies_access_nothing_beyond_either_end() {
    let (mut src, dst) = (Guarded::new(2), Guarded::new(2));
    for (i, byte) in src.bytes().iter_mut().enumerate() {
        *byte = pattern(i);
    }
    for (name, copy, lengths) in engines() {
        for len in lengths {
            let src_ends = src.end().wrapping_sub(len);
            let dst_ends = dst.end().wrapping_sub(len);
            for (to, from) in [
                (dst.start, src.start),
                (dst.start, src_ends),
                (dst_ends, src.start),
                (dst_ends, src_ends),
            ] {
                // SAFETY: both ranges lie in this test's pages, at their ends.
                let ok = unsafe { copy(to, from, len) };
                assert!(ok, "{name} {len} touched a guard page");
            }
        }
    }
}

#[test]
fn a_copy_that_leaves_the_page_fails() {
    let (src, dst) = (Guarded::new(1), Guarded::new(2));
    for (name, copy, lengths) in engines() {
        let (shortest, longest) = (*lengths.start().max(&1), *lengths.end());
        for offset in 0..PAGE {
            let remaining = PAGE - offset;
            for len in [
                shortest,
                64.max(shortest),
                remaining + 1,
                remaining + 64,
                longest,
            ] {
                if !lengths.contains(&len) {
                    continue;
                }
                let inside = len <= remaining;
                let (a, b) = (src.start.wrapping_add(offset), dst.start);
                // SAFETY: the ranges belong to this test's areas; accesses outside of the pages
                // fault.
                unsafe {
                    assert_eq!(copy(b, a, len), inside, "{name}: read {len} at {offset}");
                }
                let a = dst.end().wrapping_sub(PAGE).wrapping_add(offset);
                // SAFETY: as above.
                unsafe {
                    let source = dst.start;
                    if len <= PAGE {
                        assert_eq!(
                            copy(a, source, len),
                            inside,
                            "{name}: write {len} at {offset}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn faults_at_the_start_and_in_the_middle_are_survived() {
    let pages = Guarded::new(3);
    let good = Guarded::new(3);
    protect(pages.start.wrapping_add(PAGE), PAGE, libc::PROT_NONE);
    for (name, copy, lengths) in engines() {
        for len in lengths.step_by(7).filter(|&len| len > 0) {
            let before = pages.start.wrapping_sub(1);
            let into_hole = pages.start.wrapping_add(PAGE - len.min(PAGE) / 2);
            for bad in [before, into_hole] {
                // SAFETY: the ranges belong to this test's areas; accesses to unmapped addresses
                // fault.
                unsafe {
                    let fits = bad.wrapping_add(len) <= pages.start.wrapping_add(PAGE)
                        && bad >= pages.start;
                    assert_eq!(copy(good.start, bad, len), fits, "{name}: read {len}");
                    assert_eq!(copy(bad, good.start, len), fits, "{name}: write {len}");
                }
            }
        }
    }
}

#[test]
fn a_readonly_page_can_be_read_and_not_written() {
    let (page, good) = (Guarded::new(2), Guarded::new(2));
    protect(page.start, 2 * PAGE, libc::PROT_READ);
    for (name, copy, lengths) in engines() {
        for len in lengths.filter(|&len| len > 0) {
            // SAFETY: the ranges belong to this test's areas.
            unsafe {
                assert!(copy(good.start, page.start, len), "{name} {len}");
                assert!(!copy(page.start, good.start, len), "{name} {len}");
            }
        }
    }
}

#[test]
fn the_engines_reject_lengths_of_other_engines() {
    let page = Guarded::new(1);
    // SAFETY: nothing is accessed, and the page would be long enough.
    unsafe {
        assert!(!short::copy(page.start, page.start, SHORT_MAX + 1));
        assert!(!sse2::copy(page.start, page.start, SHORT_MAX));
        assert!(!avx2::copy(page.start, page.start, SHORT_MAX));
    }
}

#[test]
fn snapshots_fills_and_words_recover_from_faults() {
    let (mut src, mut dst) = (Guarded::new(1), Guarded::new(1));
    for (i, byte) in src.bytes().iter_mut().enumerate() {
        *byte = pattern(i);
    }
    for offset in 0..PAGE {
        let (a, b) = (
            src.start.wrapping_add(offset),
            dst.start.wrapping_add(offset),
        );
        // SAFETY: the ranges belong to this test's areas.
        unsafe {
            assert_eq!(copy_64(dst.start, a), offset + 64 <= PAGE);
            assert_eq!(copy_64(b, src.start), offset + 64 <= PAGE);
            assert_eq!(copy_96(dst.start, a), offset + 96 <= PAGE);
            assert_eq!(copy_96(b, src.start), offset + 96 <= PAGE);
            assert!(fill(b, PAGE - offset, offset as u8));
            assert!(!fill(b, PAGE - offset + 1, 0));
        }
        for (len, copy) in [(64, copy_64 as Snapshot), (96, copy_96)] {
            dst.bytes().fill(0);
            // SAFETY: as above.
            if unsafe { copy(dst.start, a) } {
                let expected: Vec<u8> = (offset..offset + len).map(pattern).collect();
                assert_eq!(dst.bytes()[..len], expected);
                assert_eq!(dst.bytes()[len], 0);
            }
        }
    }
    let end = src.end();
    // SAFETY: the words are aligned and belong to this test's areas.
    unsafe {
        assert!(store_u32(end.wrapping_sub(4), 0xdead_beef));
        assert_eq!(load_u32(end.wrapping_sub(4)), Some(0xdead_beef));
        assert!(store_u64(end.wrapping_sub(8), 0x0123_4567_89ab_cdef));
        assert_eq!(load_u64(end.wrapping_sub(8)), Some(0x0123_4567_89ab_cdef));
        assert_eq!(load_u32(end), None);
        assert_eq!(load_u64(end), None);
        assert!(!store_u32(end, 1));
        assert!(!store_u64(end, 1));
        // Stores of two and three words write exactly these words, even at addresses that are not a
        // multiple of their size.
        for words in [2, 3] {
            for back in words..words + 2 {
                let at = end.wrapping_sub(4 * back);
                let other = if back > words { end } else { at }.wrapping_sub(4);
                assert!(store_u32(other, 77));
                assert!(match words {
                    2 => store_2(at, [1, 2]),
                    _ => store_3(at, [1, 2, 3]),
                });
                let stored = (0..words).map(|n| load_u32(at.wrapping_add(4 * n)));
                assert!(stored.eq((1..=words as u32).map(Some)));
                assert_eq!(load_u32(other), Some(77));
            }
        }
        // The last word of each store is beyond the end.
        assert!(!store_2(end.wrapping_sub(4), [1, 2]));
        assert!(!store_3(end.wrapping_sub(8), [1, 2, 3]));
    }
}

#[test]
fn sums_access_nothing_beyond_the_end() {
    let mut page = Guarded::new(1);
    for (i, byte) in page.bytes().iter_mut().enumerate() {
        *byte = pattern(i);
    }
    let mut engines = vec![Engine::Adc];
    if has_avx2() {
        engines.push(Engine::Avx2);
    }
    for len in 0..=PAGE {
        let start = page.end().wrapping_sub(len);
        let expected = oracle(&page.bytes()[PAGE - len..]);
        for &engine in &engines {
            // SAFETY: the range belongs to this test's page; an access to one more byte faults.
            unsafe {
                assert_eq!(
                    sum::sum(engine, start, len),
                    Some(expected),
                    "{engine:?} {len}"
                );
                assert_eq!(sum::sum(engine, start, len + 1), None, "{engine:?} {len}");
                assert_eq!(sum::sum(engine, start, len + 64), None, "{engine:?} {len}");
            }
        }
    }
}

/// Returns the checksum by the algorithm of RFC 1071, literally: sums big-endian words, and adds
/// carries back.
pub(super) fn oracle(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

proptest::proptest! {
    #[test]
    fn sums_equal_the_simple_oracle(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..5000),
        ones in 0..3_u8,
        initial in proptest::num::u32::ANY,
    ) {
        // Long runs of 0xff and 0x00 test carries and both representations of zero.
        let bytes: Vec<u8> = match ones {
            0 => bytes,
            1 => vec![0xff; bytes.len()],
            _ => bytes.iter().map(|byte| if byte & 1 == 0 { 0 } else { 0xff }).collect(),
        };
        let expected = oracle(&bytes);
        // SAFETY: the bytes are private, and the processor supports the engine.
        unsafe {
            let adc = sum::sum(Engine::Adc, bytes.as_ptr(), bytes.len());
            proptest::prop_assert_eq!(adc, Some(expected));
            if has_avx2() {
                let avx2 = sum::sum(Engine::Avx2, bytes.as_ptr(), bytes.len());
                proptest::prop_assert_eq!(avx2, Some(expected));
            }
        }
        let running_sum = u64::from(crate::ones_sum_bytes(&bytes, initial));
        let by_hand = u64::from(initial) + u64::from(expected);
        proptest::prop_assert_eq!(running_sum % 0xffff, by_hand % 0xffff);
        proptest::prop_assert_eq!(running_sum == 0, by_hand == 0);
    }
}
