//! Foreign memory: files of a virtual machine, which a shim's agent maps.

mod common;

use abi::layout::{FOREIGN, PAGE};
use abi::version::VERSION;
use common::{HOSTILE, TestDomain, descriptors, serialize, start_with_profile};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use sandbox::{AgentError, Profile};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

const LOAD: u64 = 10;
const STORE: u64 = 11;
/// The size of the kernel's pool of pages of 2 MB.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// A page of 2 MB in addition to those that the kernel's pool had before.
struct AddedHugePage;

impl AddedHugePage {
    /// Adds a page to the pool. Returns an error if the kernel does not permit this, or has no
    /// contiguous memory.
    fn new() -> Result<Self, String> {
        let before = Self::pool()?;
        let wanted = before + 1;
        let failed = |error| format!("{HUGE_PAGES}: {error}");
        fs::write(HUGE_PAGES, wanted.to_string()).map_err(failed)?;
        match Self::pool() {
            Ok(now) if now >= wanted => Ok(Self),
            _ => {
                fs::write(HUGE_PAGES, before.to_string()).map_err(failed)?;
                Err("memory for a page of 2 MB".into())
            }
        }
    }

    fn pool() -> Result<u64, String> {
        let text = fs::read_to_string(HUGE_PAGES);
        let text = text.map_err(|error| format!("{HUGE_PAGES}: {error}"))?;
        text.trim()
            .parse()
            .map_err(|_| format!("{HUGE_PAGES}: {text}"))
    }
}

impl Drop for AddedHugePage {
    fn drop(&mut self) {
        if let Ok(now) = Self::pool() {
            let _ = fs::write(HUGE_PAGES, now.saturating_sub(1).to_string());
        }
    }
}

fn shim() -> TestDomain {
    let version = u64::from(VERSION);
    start_with_profile(Profile::Shim, version, Path::new(HOSTILE), "shim", &[]).expect("a domain")
}

fn file(pages: u64) -> OwnedFd {
    let file = memfd_create("vm", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&file, pages * PAGE as u64).expect("room");
    file
}

fn load(target: &mut TestDomain, page: u64) -> Result<u64, ()> {
    target.execute(LOAD, &[page]).expect("alive")
}

fn store(target: &mut TestDomain, page: u64, value: u64) -> Result<u64, ()> {
    target.execute(STORE, &[page, value]).expect("alive")
}

fn write(file: &OwnedFd, page: u64, value: u64) {
    let at = page * PAGE as u64;
    rustix::io::pwrite(file, &value.to_ne_bytes(), at).expect("written");
}

#[test]
fn a_file_is_visible_exactly_while_mapped() {
    let Some(_guard) = serialize() else { return };
    let (mut target, file) = (shim(), file(8));
    write(&file, 3, 0x33);
    assert_eq!(load(&mut target, 100), Err(()), "nothing is mapped");
    let offset = 2 * PAGE as u64;
    let agent = &mut target.domain.agent;
    agent
        .map_foreign(file.as_fd(), offset, &(100..104))
        .unwrap();
    assert_eq!(load(&mut target, 101), Ok(0x33));
    assert_eq!(store(&mut target, 103, 0x55), Ok(0));
    let mut bytes = [0; 8];
    rustix::io::pread(&file, &mut bytes, 5 * PAGE as u64).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 0x55);
    assert_eq!(load(&mut target, 99), Err(()));
    assert_eq!(load(&mut target, 104), Err(()));
    if let Some(open) = descriptors(target.domain.agent_pid) {
        assert_eq!(open, [], "the agent keeps no descriptor");
    }
    target.domain.agent.unmap_foreign(&(100..104)).unwrap();
    assert_eq!(load(&mut target, 101), Err(()));
    target.kill();
}

#[test]
fn a_shim_survives_truncated_and_punched_files() {
    let Some(_guard) = serialize() else { return };
    let (mut target, file) = (shim(), file(8));
    let agent = &mut target.domain.agent;
    agent.map_foreign(file.as_fd(), 0, &(0..16)).unwrap();
    assert_eq!(store(&mut target, 7, 1), Ok(0));
    assert_eq!(load(&mut target, 8), Err(()), "past the end of the file");
    ftruncate(&file, 4 * PAGE as u64).unwrap();
    assert_eq!(load(&mut target, 7), Err(()), "truncated");
    assert_eq!(store(&mut target, 7, 2), Err(()));
    assert_eq!(load(&mut target, 3), Ok(0));
    ftruncate(&file, 16 * PAGE as u64).unwrap();
    assert_eq!(store(&mut target, 15, 3), Ok(0), "grown");
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, hole, 15 * PAGE as u64, PAGE as u64).unwrap();
    assert_eq!(load(&mut target, 15), Ok(0), "punched");
    drop(file);
    assert_eq!(load(&mut target, 0), Ok(0), "the VMM has exited");
    target.kill();
}

#[test]
fn large_mappings_are_unmapped_completely() {
    let Some(_guard) = serialize() else { return };
    const GIB: u32 = (1 << 30) / PAGE as u32;
    let (mut target, file) = (shim(), file(8 * u64::from(GIB)));
    let pages = GIB / 2..8 * GIB;
    let agent = &mut target.domain.agent;
    agent.map_foreign(file.as_fd(), 0, &pages).unwrap();
    let all = [pages.start, GIB - 1, GIB, 5 * GIB + 1, pages.end - 1].map(u64::from);
    let touched = all.map(|page| store(&mut target, page, 1));
    assert_eq!(touched, [Ok(0); 5]);
    target.domain.agent.unmap_foreign(&pages).unwrap();
    assert_eq!(all.map(|page| load(&mut target, page)), [Err(()); 5]);
    target.kill();
}

#[test]
fn a_file_of_huge_pages_is_mapped() {
    /// Pages of 4 KB in a huge page.
    const HUGE: u32 = 512;
    let Some(_guard) = serialize() else { return };
    let _added = match AddedHugePage::new() {
        Ok(added) => added,
        Err(missing) => return testing::skip(missing),
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = memfd_create("huge", flags).unwrap();
    ftruncate(&file, u64::from(HUGE) * PAGE as u64).unwrap();
    let mut target = shim();
    let pages = HUGE..2 * HUGE;
    let [first, last] = [pages.start, pages.end - 1].map(u64::from);
    let agent = &mut target.domain.agent;
    agent.map_foreign(file.as_fd(), 0, &pages).unwrap();
    assert_eq!(load(&mut target, first), Ok(0));
    assert_eq!(store(&mut target, last, 0x55), Ok(0));
    let (mut bytes, at) = ([0; 8], u64::from(HUGE - 1) * PAGE as u64);
    rustix::io::pread(&file, &mut bytes, at).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 0x55);
    target.domain.agent.unmap_foreign(&pages).unwrap();
    assert_eq!(load(&mut target, first), Err(()));
    target.kill();
}

#[test]
fn a_rejected_mapping_maps_nothing() {
    let Some(_guard) = serialize() else { return };
    let mut target = shim();
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let huge = memfd_create("huge", MemfdFlags::HUGETLB).ok();
    for file in [Some(reader), huge].into_iter().flatten() {
        // A pipe cannot be mapped, and a mapping of huge pages must be aligned.
        let agent = &mut target.domain.agent;
        let refused = agent.map_foreign(file.as_fd(), 0, &(1..3));
        assert!(
            matches!(refused, Err(AgentError::Refused(_))),
            "{refused:?}"
        );
        assert_eq!(load(&mut target, 1), Err(()));
    }
    let file = file(1);
    let agent = &mut target.domain.agent;
    agent.map_foreign(file.as_fd(), 0, &(1..2)).unwrap();
    assert_eq!(load(&mut target, 1), Ok(0), "the agent continues");
    target.kill();
}

#[test]
fn a_shim_cannot_map_files_itself() {
    let Some(_guard) = serialize() else { return };
    let mut target = shim();
    let call = target.call(libc::SYS_mmap, &[FOREIGN as u64, 4096, 3, 0x11, 0, 0]);
    assert_eq!(call, Some(-1), "EPERM");
    assert_eq!(load(&mut target, 0), Err(()));
    target.kill();
}
