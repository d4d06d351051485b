//! Tests of the memory of a virtual machine, which a shim and its agent map. The test acts as the
//! virtual machine.

mod common;

use abi::hypercall::{ForeignMap, HypercallKind};
use abi::machine::{Device, Machine, Program, VhostUser};
use common::{Daemon, domain, eventually, kill, machine};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::json;
use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

const PAGES: u32 = 4096;
const PAGE: u64 = 4096;

/// Returns a machine with a driver domain, a guest, and a shim named `vm`.
fn with_shim(socket: &Path) -> Machine {
    let mut plan = machine(1);
    let mut shim = domain("vm", Program::Guest);
    shim.window_slots = 0;
    shim.foreign_pages = PAGES;
    shim.devices.push(Device::VhostUser(VhostUser {
        path: socket.display().to_string(),
        client: false,
        owner: None,
        group: None,
        mode: 0o640,
    }));
    plan.domains.push(shim);
    plan
}

/// Starts a machine whose shim has attached its socket.
fn up(dir: &Path) -> (Daemon, PathBuf) {
    let socket = dir.join("vm.sock");
    let daemon = Daemon::up(&with_shim(&socket));
    let attach = json!({ "do": "attach", "kind": 1, "index": 0 });
    assert_eq!(daemon.order("vm", attach), "attached");
    (daemon, socket)
}

/// Returns a virtual machine's memory. `/proc` shows its name for every process that has it mapped
/// or open.
fn memory(name: &str, pages: u64) -> OwnedFd {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, pages * PAGE).unwrap();
    memory
}

/// Sends descriptors to the shim. Returns their numbers in the shim's process.
fn send(daemon: &Daemon, socket: &Path, fds: &[&OwnedFd]) -> Vec<u32> {
    let stream = UnixStream::connect(socket).unwrap();
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(
        &stream,
        &[IoSlice::new(b"m")],
        &mut control,
        SendFlags::empty(),
    )
    .unwrap();
    let numbers = daemon.order("vm", json!({ "do": "accept" }));
    let numbers = numbers.as_array().unwrap_or_else(|| panic!("{numbers}"));
    numbers.iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

fn map(daemon: &Daemon, domain: &str, number: u32, page: u32, bytes: u64) -> Result<(), Errno> {
    let offset = 0;
    let map = ForeignMap {
        number,
        page,
        offset,
        bytes,
    };
    match daemon
        .call(domain, HypercallKind::ForeignMap, map.encode())
        .0
    {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(-errno as i32)),
    }
}

fn read_page(daemon: &Daemon, page: u32) -> serde_json::Value {
    daemon.order("vm", json!({ "do": "read-foreign", "page": page }))
}

/// Returns the processes that have this memory open or mapped.
fn holders(name: &str) -> Vec<i64> {
    let holds = |pid: &i64| {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let maps = fs::read_to_string(folder.join("maps")).unwrap_or_default();
        let open = fs::read_dir(folder.join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        let mut links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        maps.contains(name) || links.any(|link| link.to_string_lossy().contains(name))
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(holds).collect()
}

#[test]
fn only_the_shim_and_its_agent_have_a_vms_memory() {
    testing::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let (daemon, socket) = up(dir.path());
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let name = format!("vm-memory-{}", std::process::id());
    let memory = memory(&name, 4);
    rustix::io::pwrite(&memory, &[7], PAGE).unwrap();
    let numbers = send(&daemon, &socket, &[&memory]);
    map(&daemon, "vm", numbers[0], 100, 4 * PAGE).unwrap();
    assert_eq!(read_page(&daemon, 101), 7);
    let fill = json!({ "do": "fill-foreign", "page": 102, "byte": 9 });
    assert_eq!(daemon.order("vm", fill), "done");
    let mut byte = [0];
    rustix::io::pread(&memory, &mut byte, 2 * PAGE).unwrap();
    assert_eq!(byte, [9]);
    let shim = daemon.domain_status("vm");
    let mut expected = [
        std::process::id().into(),
        shim["pid"].as_i64().unwrap(),
        shim["agent_pid"].as_i64().unwrap(),
    ];
    expected.sort_unstable();
    let found = holders(&name);
    assert!(expected.iter().all(|pid| found.contains(pid)), "{found:?}");
    // Other tests' processes may be forks of this one.
    let machine = [daemon.child.id().into()]
        .into_iter()
        .chain(daemon.processes());
    for pid in machine.filter(|pid| !expected.contains(pid)) {
        assert!(
            !found.contains(&pid),
            "process {pid} has the memory: {found:?}"
        );
    }
    ftruncate(&memory, PAGE).unwrap();
    assert_eq!(read_page(&daemon, 101), "fault", "truncated");
    assert_eq!(read_page(&daemon, 100), 0);
    assert_eq!(
        daemon
            .call("vm", HypercallKind::ForeignUnmap, [100, 0, 0])
            .0,
        0
    );
    assert_eq!(read_page(&daemon, 100), "fault", "unmapped");
    daemon.down();
    assert!(!socket.exists());
}

#[test]
fn invalid_or_unbounded_memory_is_rejected() {
    testing::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let (daemon, socket) = up(dir.path());
    let null = fs::File::options().read(true).write(true).open("/dev/null");
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let plain = memory("vm-plain", 4);
    let read_only: OwnedFd = {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", plain.as_raw_fd());
        fs::File::open(path).unwrap().into()
    };
    let null = null.unwrap().into();
    let numbers = send(&daemon, &socket, &[&null, &reader, &read_only, &plain]);
    for number in &numbers[..3] {
        assert_eq!(map(&daemon, "vm", *number, 0, PAGE), Err(Errno::INVAL));
    }
    assert_eq!(map(&daemon, "vm", 499, 0, PAGE), Err(Errno::BADF));
    assert_eq!(map(&daemon, "vm", u32::MAX, 0, PAGE), Err(Errno::BADF));
    let memory = numbers[3];
    let most = u64::from(PAGES) * PAGE;
    assert_eq!(map(&daemon, "vm", memory, 0, most + 1), Err(Errno::NOSPC));
    assert_eq!(map(&daemon, "vm", memory, 0, most), Ok(()));
    assert_eq!(map(&daemon, "vm", memory, PAGES, 1), Err(Errno::NOSPC));
    // Other domains have no descriptor of the memory, and cannot receive one.
    for other in ["driver", "g0"] {
        assert_eq!(map(&daemon, other, 3, 0, PAGE), Err(Errno::INVAL));
        let accepted = daemon.order(other, json!({ "do": "attach", "kind": 2, "index": 0 }));
        assert_eq!(accepted, "attached");
        let accepted = daemon.order(other, json!({ "do": "accept" }));
        assert_eq!(accepted, Errno::PERM.raw_os_error());
    }
    daemon.down();
}

#[test]
fn a_shims_exit_releases_the_memory() {
    testing::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let (daemon, socket) = up(dir.path());
    let name = format!("vm-released-{}", std::process::id());
    let memory = memory(&name, 4);
    let numbers = send(&daemon, &socket, &[&memory]);
    map(&daemon, "vm", numbers[0], 0, 4 * PAGE).unwrap();
    kill(daemon.domain_status("vm")["pid"].as_i64().unwrap());
    daemon.await_exit("vm");
    let own = i64::from(std::process::id());
    eventually("all other processes release it", || holders(&name) == [own]);
    daemon.down();
}
