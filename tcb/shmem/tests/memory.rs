//! Tests of the public interface of spans, areas and regions.
#![allow(unsafe_code)] // the tests make system calls

use abi::PAGE;
use shmem::{Area, Fault, Region, Span, copy, ones_sum, ones_sum_bytes};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lock of tests with regions. Some of these tests depend on the regions' addresses, so they run
/// one at a time.
static ADDRESSES: Mutex<()> = Mutex::new(());

fn serialize() -> MutexGuard<'static, ()> {
    ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn parts_of_a_span_never_leave_it() {
    let span = Area::anonymous(100).unwrap().span();
    assert_eq!(span.len(), PAGE);
    assert_eq!(span.sub(PAGE, 0).map(Span::len), Some(0));
    assert_eq!(
        span.sub(10, PAGE - 10).map(Span::addr),
        Some(span.addr() + 10)
    );
    for (offset, len) in [
        (0, PAGE + 1),
        (PAGE + 1, 0),
        (1, PAGE),
        (usize::MAX, 1),
        (1, usize::MAX),
    ] {
        assert_eq!(span.sub(offset, len), None);
    }
    assert_eq!(span.skip(usize::MAX).addr(), span.addr() + PAGE);
    assert!(span.skip(usize::MAX).is_empty());
    assert_eq!(span.skip(96).take(1000).take(7).len(), 7);
    assert_eq!(span.take(usize::MAX), span);
    assert_eq!(Span::EMPTY.skip(5), Span::EMPTY);
}

#[test]
fn copies_have_the_length_of_the_shorter_side() {
    let span = Area::anonymous(2 * PAGE).unwrap().span();
    for len in [0, 1, 63, 64, 65, 1514, 4097] {
        span.fill(0xaa).unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
        span.write(&bytes).unwrap();
        let mut back = vec![0; len + 1];
        span.read(&mut back).unwrap();
        assert_eq!(back[..len], bytes);
        assert_eq!(back[len], 0xaa);
        let mut got = vec![0; len + 1];
        span.get(&mut got).unwrap();
        assert_eq!(got, back);
        span.put(&back[1..]).unwrap();
        span.take(len).get(&mut got).unwrap();
        assert_eq!(got[..len], back[1..]);
        span.put(&bytes).unwrap();
        let mut short = vec![0x55; len + 5];
        span.take(len).read(&mut short).unwrap();
        assert_eq!(short[..len], bytes);
        assert_eq!(short[len..], [0x55; 5]);
        let other = Area::anonymous(2 * PAGE).unwrap().span();
        copy(other.skip(3), span.take(len)).unwrap();
        other.skip(3).read(&mut short).unwrap();
        assert_eq!(short[..len], bytes);
        assert_eq!(short[len..], [0; 5]);
        let sum = ones_sum(span.take(len), 0x1_2345).unwrap();
        assert_eq!(sum, ones_sum_bytes(&bytes, 0x1_2345));
    }
    Span::EMPTY.fill(1).unwrap();
    Span::EMPTY.read(&mut [0; 9]).unwrap();
    copy(Span::EMPTY, span).unwrap();
}

#[test]
fn the_sum_is_over_big_endian_words() {
    // This is the example of RFC 1071, section 3.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(ones_sum_bytes(&bytes, 0), 0xddf2);
    assert_eq!(ones_sum_bytes(&bytes[..3], 5), 0xf201 + 5);
    assert_eq!(ones_sum_bytes(&[], 9), 9);
    assert_eq!(ones_sum_bytes(&[0xff, 0xff], u32::MAX), 0xffff);
}

#[test]
fn control_words_are_aligned_and_inside() {
    let area = Area::anonymous(PAGE).unwrap();
    let span = area.span();
    assert!(span.u32(2).is_none() && span.u64(4).is_none());
    assert!(span.u32(PAGE).is_none() && span.u32(PAGE - 2).is_none());
    assert!(span.u64(PAGE - 4).is_none() && span.u32(usize::MAX - 1).is_none());
    span.u32(PAGE - 4).unwrap().store(7, Ordering::Release);
    assert_eq!(span.load_u32(PAGE - 4), Ok(7));
    span.store_u64(8, 0x1_0000_0002).unwrap();
    assert_eq!(span.u64(8).unwrap().load(Ordering::Acquire), 0x1_0000_0002);
    assert_eq!(span.load_u64(8), Ok(0x1_0000_0002));
    assert_eq!(span.store_u32(8, 9), Ok(()));
    assert_eq!(span.load_u64(8), Ok(0x1_0000_0009));
    assert_eq!(span.load_u32(6), Err(Fault));
    assert_eq!(span.load_u64(PAGE), Err(Fault));
    assert_eq!(span.store_u32(PAGE, 0), Err(Fault));
    assert_eq!(span.store_u64(4, 0), Err(Fault));
    let read = |offset, count: usize| {
        let mut words = vec![0; count];
        span.read_words(offset, &mut words).map(|()| words)
    };
    assert_eq!(span.store_words(12, [5, 6, 7]), Ok(()));
    assert_eq!(read(8, 3), Ok(vec![9, 5, 6]));
    assert_eq!(read(20, 1), Ok(vec![7]));
    assert_eq!(read(PAGE, 0), Ok(vec![]));
    assert_eq!(read(14, 2), Err(Fault));
    assert_eq!(read(PAGE - 8, 3), Err(Fault));
    assert_eq!(span.store_words(PAGE - 4, [1, 2]), Err(Fault));
    assert_eq!(span.store_words(2, [1]), Err(Fault));
    span.prefetch();
    span.prefetch_write();
    Span::EMPTY.prefetch();
    Span::EMPTY.prefetch_write();
    assert_eq!(area.page(0), Some(span));
    assert_eq!(area.page(1), None);
    assert_eq!(area.page(u32::MAX), None);
}

#[test]
fn a_region_can_neither_be_resized_nor_sealed() {
    let _alone = serialize();
    let region = Region::create("test", 3 * PAGE - 5).unwrap();
    assert_eq!(region.span().len(), 3 * PAGE);
    assert!(region.span().page(2).is_some() && region.span().page(3).is_none());
    let fd = region.fd().as_raw_fd();
    // SAFETY: the system calls use a descriptor of this test.
    unsafe {
        assert_eq!(libc::ftruncate(fd, 0), -1);
        assert_eq!(libc::ftruncate(fd, 1 << 20), -1);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE), -1);
        assert_eq!(
            libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC,
            libc::FD_CLOEXEC
        );
    }
}

#[test]
fn the_readonly_descriptor_cannot_be_mapped_writable() {
    let _alone = serialize();
    let region = Region::create("test", PAGE).unwrap();
    region.span().write(b"seen").unwrap();
    let readonly = region.readonly_fd().unwrap();
    let map = |protection| {
        let flags = libc::MAP_SHARED;
        // SAFETY: the call creates a new mapping at an address that the kernel chooses.
        unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                protection,
                flags,
                readonly.as_raw_fd(),
                0,
            )
        }
    };
    assert_eq!(map(libc::PROT_READ | libc::PROT_WRITE), libc::MAP_FAILED);
    let page = map(libc::PROT_READ);
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: the page is mapped and readable, and is unmapped only after the access.
    unsafe {
        assert_eq!(page.cast::<[u8; 4]>().read_volatile(), *b"seen");
        assert_eq!(
            libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE),
            -1
        );
        libc::munmap(page, PAGE);
    }
}

#[test]
fn a_stale_spans_addresses_are_reused_for_regions() {
    let _alone = serialize();
    let region = Region::create("first", 4 * PAGE).unwrap();
    let span = region.span();
    span.write(b"mine").unwrap();
    drop(region);
    assert_eq!(span.write(b"gone"), Err(Fault));
    assert_eq!(span.read(&mut [0; 64]), Err(Fault));
    assert_eq!(span.put(b"gone"), Err(Fault));
    assert_eq!(span.get(&mut [0; 64]), Err(Fault));
    assert_eq!(span.load_u32(0), Err(Fault));
    assert_eq!(ones_sum(span, 0), Err(Fault));
    let area = Area::anonymous(PAGE).unwrap();
    assert!(area.span().addr() >= span.addr() + span.len() || area.span().addr() < span.addr());
    assert_eq!(span.fill(0), Err(Fault));
    let again = Region::create("second", 4 * PAGE).unwrap();
    // The address is lower if the returned range has merged with free addresses below it.
    assert!(
        again.span().addr() <= span.addr(),
        "first fit does not reuse returned addresses"
    );
    let mut bytes = [1; 4];
    again.span().read(&mut bytes).unwrap();
    assert_eq!(bytes, [0; 4], "a new region is not zero");
}

#[test]
fn returned_addresses_merge() {
    let _alone = serialize();
    // Reserve contiguous addresses for all parts, because areas of other tests take fresh addresses
    // meanwhile.
    let reserved = Region::create("room", 8 * 16 * PAGE).unwrap().span();
    let mut regions: Vec<Region> = (0..8)
        .map(|_| Region::create("part", 16 * PAGE).unwrap())
        .collect();
    // Drop every second region first, and then the rest, so that a range merges with both
    // neighbours, one, or none.
    for n in [1, 2, 3, 4] {
        drop(regions.remove(n));
    }
    drop(regions);
    let big = Region::create("whole", 8 * 16 * PAGE).unwrap();
    assert!(big.span().addr() <= reserved.addr());
    big.span().fill(1).unwrap();
}

#[test]
fn a_punched_page_reads_as_zero_and_is_usable() {
    let _alone = serialize();
    let region = Region::create("holes", 2 * PAGE).unwrap();
    region.span().fill(9).unwrap();
    punch(&region, 0);
    let mut bytes = [1; 128];
    region.span().read(&mut bytes).unwrap();
    assert_eq!(bytes, [0; 128]);
}

/// Punches a page out of the file.
fn punch(region: &Region, page: usize) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let at = (page * PAGE) as i64;
    // SAFETY: the system call uses a descriptor of this test.
    let punched = unsafe { libc::fallocate(region.fd().as_raw_fd(), mode, at, PAGE as i64) };
    assert_eq!(punched, 0);
}

fn protect(span: Span, protection: i32) {
    // SAFETY: the pages belong to this test's region, and only spans refer to them.
    let done = unsafe { libc::mprotect(span.as_ptr().cast(), span.len(), protection) };
    assert_eq!(done, 0);
}

/// Row 18: a copy reports an unmapped page in either direction, at any position in the range and
/// for any length. It succeeds again once the page is mapped.
#[test]
fn attack_18_a_copy_reports_a_bad_page() {
    let _alone = serialize();
    let region = Region::create("bad", 4 * PAGE).unwrap();
    let good = Area::anonymous(3 * PAGE).unwrap().span();
    let span = region.span();
    let bad = span.sub(PAGE, PAGE).unwrap();
    for len in [1, 8, 63, 64, 65, 200, 1500, PAGE, PAGE + 1, 2 * PAGE] {
        let places = [PAGE - 1, PAGE, 2 * PAGE - 1, PAGE.saturating_sub(len - 1)];
        for from in places.into_iter().filter(|from| from + len > PAGE) {
            let range = span.sub(from, len).unwrap();
            let (out, into) = (good.take(len), good.take(len));
            let mut bytes = vec![0; len];
            let outcomes = |bytes: &mut [u8]| {
                [
                    copy(out, range),
                    copy(range, into),
                    range.read(bytes),
                    range.write(bytes),
                    range.fill(7),
                    ones_sum(range, 0).map(drop),
                ]
            };
            protect(bad, libc::PROT_NONE);
            assert_eq!(outcomes(&mut bytes), [Err(Fault); 6], "{from} {len}");
            protect(bad, libc::PROT_READ | libc::PROT_WRITE);
            assert_eq!(outcomes(&mut bytes), [Ok(()); 6], "{from} {len}");
        }
    }
}

/// Row 18: a read-only page can be read, and a copy into it reports a fault.
#[test]
fn attack_18_a_copy_reports_a_read_only_page() {
    let _alone = serialize();
    let region = Region::create("read-only", 2 * PAGE).unwrap();
    let span = region.span();
    span.fill(9).unwrap();
    protect(span.sub(PAGE, PAGE).unwrap(), libc::PROT_READ);
    let source = Area::anonymous(PAGE).unwrap().span();
    let across = span.sub(2 * PAGE - 100, 100).unwrap();
    assert_eq!(copy(across, source.take(100)), Err(Fault));
    let mut bytes = [0; 100];
    assert_eq!(across.read(&mut bytes), Ok(()));
    assert_eq!(bytes, [9; 100]);
}

/// Row 36: bytes that are copied into a punched page are in the owner's new page, whose other bytes
/// are zero.
#[test]
fn attack_36_a_copy_reaches_the_punched_page() {
    let _alone = serialize();
    let region = Region::create("punched", 2 * PAGE).unwrap();
    let span = region.span();
    let source = Area::anonymous(PAGE).unwrap().span();
    source.fill(5).unwrap();
    for len in [1, 64, 1500, PAGE] {
        span.fill(9).unwrap();
        punch(&region, 1);
        let page = region.span().page(1).unwrap();
        assert_eq!(copy(page.take(len), source.take(len)), Ok(()));
        let mut owners = [1; PAGE];
        let at = PAGE as u64;
        let file = std::fs::File::from(region.fd().try_clone_to_owned().unwrap());
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut owners, at).unwrap();
        assert!(owners[..len].iter().all(|byte| *byte == 5), "{len}");
        assert!(owners[len..].iter().all(|byte| *byte == 0), "{len}");
        let mut other = [1; PAGE];
        region.span().page(0).unwrap().read(&mut other).unwrap();
        assert_eq!(other, [9; PAGE], "the neighbouring page changed");
    }
}

/// Row 36: a granter that punches its pages during copies in either direction harms no other
/// domain. Each byte is the copied one or zero.
#[test]
fn attack_36_pages_are_punched_under_copies() {
    let _alone = serialize();
    let region = Region::create("storm", 2 * PAGE).unwrap();
    let area = Area::anonymous(2 * PAGE).unwrap();
    let source = area.span().take(PAGE);
    let back = area.span().sub(PAGE, PAGE).unwrap();
    source.fill(5).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                punch(&region, 1);
            }
        });
        let page = region.span().page(1).unwrap();
        for _ in 0..2000 {
            assert_eq!(copy(page, source), Ok(()));
            assert_eq!(copy(back, page), Ok(()));
            let mut bytes = [1; PAGE];
            back.read(&mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| [0, 5].contains(byte)));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Program that the next test runs. It exits because of a fault.
#[test]
#[ignore = "exits; a_stray_access_exits_with_an_error runs it"]
fn access_unmapped_word() {
    let region = Region::create("stray", PAGE).unwrap();
    let word = region.span().u32(0).unwrap();
    drop(region);
    word.load(Ordering::Relaxed);
}

#[test]
fn a_stray_access_exits_with_an_error() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "access_unmapped_word",
            "--nocapture",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(77));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("grantway: bad access to 0x"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

/// A forked process does not inherit the monitor's mapping of a region.
#[test]
fn a_fork_does_not_inherit_a_region() {
    let _alone = serialize();
    let region = Region::create("fork", PAGE).unwrap();
    let area = Area::anonymous(PAGE).unwrap();
    let (kept, lost) = (area.span(), region.span());
    // SAFETY: the child only makes async-signal-safe calls and faultable loads, and then exits.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let as_expected = kept.load_u32(0).is_ok() && lost.load_u32(0).is_err();
            libc::_exit(if as_expected { 0 } else { 1 });
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    assert_eq!(status, 0);
}

#[test]
fn control_words_are_aligned_inside_and_at_least_one() {
    let page = Area::anonymous(PAGE).unwrap().span();
    page.store_u64(PAGE - 8, 0x0102_0304_0506_0708).unwrap();
    let (wide, narrow) = (page.u64s(PAGE / 8).unwrap(), page.u32s(PAGE / 4).unwrap());
    assert_eq!(wide.len(), PAGE / 8);
    let last = wide[PAGE / 8 - 1].load(Ordering::Relaxed);
    assert_eq!(last, 0x0102_0304_0506_0708);
    let last = narrow[PAGE / 4 - 1].load(Ordering::Relaxed);
    assert_eq!(last, 0x0102_0304);
    for (span, count) in [
        (page, 0),
        (page, PAGE / 8 + 1),
        (page, usize::MAX),
        (page.skip(4), 1),
        (page.take(7), 1),
        (Span::EMPTY, 0),
        (Span::EMPTY, 1),
    ] {
        assert!(span.u64s(count).is_none(), "{span:?} {count}");
    }
    for (span, count) in [
        (page, 0),
        (page, PAGE / 4 + 1),
        (page.skip(2), 1),
        (page.take(3), 1),
        (Span::EMPTY, 0),
    ] {
        assert!(span.u32s(count).is_none(), "{span:?} {count}");
    }
}

#[test]
fn words_are_written_completely_or_not_at_all() {
    let page = Area::anonymous(PAGE).unwrap().span();
    let words: Vec<u32> = (1..=300).collect();
    page.write_words(8, &words).unwrap();
    let mut back = vec![0; 303];
    page.read_words(0, &mut back).unwrap();
    assert_eq!(
        (&back[..2], &back[2..302], back[302]),
        (&[0, 0][..], &words[..], 0)
    );
    assert_eq!(page.write_words(0, &[]), Ok(()));
    for (offset, count) in [(2, 1), (PAGE, 1), (PAGE - 4, 2), (usize::MAX, 1)] {
        let refused = page.write_words(offset, &words[..count]);
        assert_eq!(refused, Err(Fault), "{offset} {count}");
    }
}

#[test]
fn entries_need_both_sub_tables() {
    use abi::GrantRef;
    use abi::counted::Translation;
    use shmem::grant_use::{TableWords, claim, release};
    let pages = Area::anonymous(2 * PAGE).unwrap();
    let (translation, status) = (pages.page(0).unwrap(), pages.page(1).unwrap());
    let entries = TableWords::of(translation, status.take(64), 16).unwrap();
    let valid = Translation::valid(7, 0, false);
    translation.store_u64(15 * 8, valid.0).unwrap();
    let words = entries.words(15).unwrap();
    assert!(claim(words.translation, words.status, GrantRef(15), true));
    assert_eq!(status.load_u32(15 * 4), Ok(1));
    release(words.status);
    assert_eq!(words.status.load(Ordering::Relaxed), 0);
    assert!(entries.words(16).is_none());
    assert!(TableWords::of(translation, status.take(63), 16).is_none());
    assert!(TableWords::of(translation.take(PAGE - 8), status, 16).is_none());
}
