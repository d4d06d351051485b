//! If a page of another domain cannot be unmapped, the process exits, and the kernel unmaps the
//! page. The test is alone in its file, because its process cannot map anything afterwards.

use rustix::process::{Resource, Rlimit, setrlimit};
use std::env;
use std::os::fd::AsFd;
use std::process::{Command, exit};
use xen::dev::{ForeignWindow, PageRights};
use xen::program::{PANICKED, end_on_panic};

/// Environment variable that is set in the process that must exit.
const ENDS: &str = "GRANTWAY_TEST_ENDS";

/// Maps a page, exhausts the mappings, and unmaps it.
fn hides_in_vain() {
    end_on_panic();
    let window = ForeignWindow::new(1).unwrap();
    let page = rustix::fs::memfd_create("page", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&page, window.span().len() as u64).unwrap();
    let span = window
        .map_device(page.as_fd(), 0, PageRights::ReadWrite)
        .unwrap();
    assert!(span.store_u32(0, 7).is_ok());
    let nothing = Rlimit {
        current: Some(0),
        maximum: None,
    };
    setrlimit(Resource::As, nothing).unwrap();
    window.unmap();
}

#[test]
fn a_page_that_cannot_be_unmapped_ends_the_process() {
    if env::var_os(ENDS).is_some() {
        hides_in_vain();
        exit(0);
    }
    let mut again = Command::new(env::current_exe().unwrap());
    again.args([
        "--exact",
        "a_page_that_cannot_be_unmapped_ends_the_process",
        "--nocapture",
    ]);
    let output = again.env(ENDS, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(PANICKED), "{said}");
    assert!(said.contains("cannot be unmapped"), "{said}");
}
