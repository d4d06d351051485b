//! The broker: a process of netd's that opens what netd itself may not open.
//!
//! Landlock keeps netd from all files but the TAP driver and network settings, and from all other
//! processes. netd needs more than that: network namespaces by their paths, of other processes'
//! too, the files of `pcap` devices, and programs in the kernel: with CAP_SYS_ADMIN, which netd
//! has, a program can read all memory. netd asks its broker for these over a link. The broker opens
//! nothing but network namespaces and the files that the machine's description names. It loads
//! programs that see packets and nothing else. It hears the description once, before netd opens any
//! device.
//!
//! If the broker ends, so does netd, and the core starts both again.

use crate::place::place;
use abi::core::{Field, MACHINE_MAX, Malformed, Message, Reader, Record, Writer};
use abi::machine::{Device, Machine, NetnsPlace};
use link::{Link, LinkError, sealed};
use netdev::{netns, programs};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The argument that makes the program a broker.
pub(crate) const ARGUMENT: &str = "--broker";
/// Bytes of the words of a refusal.
const WORDS_MAX: usize = 64 << 10;
/// Bytes of a [`NetnsPlace`].
const PLACE_BYTES: usize = 24;

/// What netd asks of its broker. The paths are beside, in a sealed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// The machine's description is beside: its files may be opened.
    Machine,
    /// Which namespaces there are at these paths.
    Places,
    /// Open the network namespace at this path.
    Namespace,
    /// Open this file for reading.
    Read,
    /// Make this file, for the domain of this life.
    Write(u64),
    /// Load a program of this kind. Beside: its code, and its maps.
    Load(u32),
}

/// What the broker answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It was done. Beside: the descriptor or the places, if any were asked for.
    Done,
    /// It was not done. Beside: why, in words, unless this is an error of the system's.
    Failed(i32),
}

impl Message for Want {
    fn put(&self, fields: &mut Writer) -> u32 {
        match self {
            Self::Machine => 1,
            Self::Places => 2,
            Self::Namespace => 3,
            Self::Read => 4,
            Self::Write(life) => {
                life.put(fields);
                5
            }
            Self::Load(kind) => {
                kind.put(fields);
                6
            }
        }
    }

    fn take(kind: u32, fields: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match kind {
            1 => Self::Machine,
            2 => Self::Places,
            3 => Self::Namespace,
            4 => Self::Read,
            5 => Self::Write(u64::take(fields)?),
            6 => Self::Load(u32::take(fields)?),
            _ => return Err(Malformed::Kind(kind)),
        })
    }
}

impl Message for Found {
    fn put(&self, fields: &mut Writer) -> u32 {
        match self {
            Self::Done => 1,
            Self::Failed(errno) => {
                errno.put(fields);
                2
            }
        }
    }

    fn take(kind: u32, fields: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match kind {
            1 => Self::Done,
            2 => Self::Failed(i32::take(fields)?),
            _ => return Err(Malformed::Kind(kind)),
        })
    }
}

/// netd's end of the link.
#[derive(Debug)]
pub(crate) struct Broker(Mutex<Link>);

impl Broker {
    /// Starts a broker: this program again. Before netd gives up the right to do so.
    pub(crate) fn start() -> io::Result<Self> {
        let (ours, theirs) = Link::pair()?;
        // The file that this process runs, whatever its name leads to by now.
        let mut program = Command::new("/proc/self/exe");
        program.arg(ARGUMENT).stdin(OwnedFd::from(theirs));
        // It ends when its link closes, or by the signal of its parent's end.
        let _child = program.stdout(Stdio::null()).spawn()?;
        Ok(Self(Mutex::new(ours)))
    }

    /// Passes the machine's description on.
    pub(crate) fn welcome(&self, machine: &OwnedFd) -> io::Result<()> {
        self.ask(Want::Machine, &[machine.as_fd()]).map(drop)
    }

    /// Which network namespaces there are at `paths`.
    pub(crate) fn places(&self, paths: &[&Path]) -> io::Result<Vec<Option<NetnsPlace>>> {
        let names: Vec<&[u8]> = paths
            .iter()
            .map(|path| path.as_os_str().as_bytes())
            .collect();
        let found = self.ask_of(Want::Places, &names.join(&0))?;
        let found = sealed::read(&found, paths.len().saturating_mul(PLACE_BYTES))?;
        let places = found.chunks_exact(PLACE_BYTES).map(|bytes| {
            let mut words = bytes
                .chunks_exact(8)
                .map(|word| word.try_into().map_or(0, u64::from_le_bytes));
            let place: NetnsPlace = std::array::from_fn(|_| words.next().unwrap_or(0));
            Some(place).filter(|place| *place != NetnsPlace::default())
        });
        let places: Vec<_> = places.collect();
        match places.len() == paths.len() {
            true => Ok(places),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Opens the network namespace at `path`.
    pub(crate) fn namespace(&self, path: &Path) -> io::Result<OwnedFd> {
        self.ask_of(Want::Namespace, path.as_os_str().as_bytes())
    }

    /// Opens a file of the machine's for reading.
    pub(crate) fn read(&self, path: &str) -> Result<OwnedFd, String> {
        let opened = self.ask_of(Want::Read, path.as_bytes());
        opened.map_err(|error| format!("the file {path} cannot be read: {error}"))
    }

    /// Makes a file of the machine's, for the domain of this life: each life has its own.
    pub(crate) fn write(&self, path: &str, life: u64) -> Result<OwnedFd, String> {
        let made = self.ask_of(Want::Write(life), path.as_bytes());
        made.map_err(|error| format!("the file {path} cannot be made: {error}"))
    }

    /// Loads a program: see [`programs::load_here`].
    pub(crate) fn load(
        &self,
        kind: u32,
        code: &[u8],
        maps: &[BorrowedFd<'_>],
    ) -> io::Result<OwnedFd> {
        let code = sealed::write("program", code)?;
        let beside = [code.as_fd()].into_iter().chain(maps.iter().copied());
        let loaded = self.ask(Want::Load(kind), &beside.collect::<Vec<_>>())?;
        loaded.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn ask_of(&self, want: Want, paths: &[u8]) -> io::Result<OwnedFd> {
        let paths = sealed::write("paths", paths)?;
        let found = self.ask(want, &[paths.as_fd()])?;
        found.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Waits for the answer. One question at a time: the answers come in the order of questions.
    fn ask(&self, message: Want, beside: &[BorrowedFd<'_>]) -> io::Result<Option<OwnedFd>> {
        let link = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = link.send(&Record { token: 0, message }, beside);
        let answer = asked.map_err(LinkError::from).and_then(|()| {
            loop {
                match link.receive::<Found>() {
                    Ok(None) => link.wait(PollFlags::IN, None),
                    received => break received,
                }
            }
        });
        let Ok(Some(answer)) = answer else {
            // Without a broker netd can do nothing; the core starts both again.
            eprintln!("grantway-netd: its broker has ended");
            std::process::exit(1);
        };
        let beside = answer.fds.into_iter().next();
        match (answer.record.message, beside) {
            (Found::Done, beside) => Ok(beside),
            (Found::Failed(_), Some(why)) => {
                let why = sealed::read(&why, WORDS_MAX)?;
                Err(io::Error::other(String::from_utf8_lossy(&why)))
            }
            (Found::Failed(errno), None) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// A broker in a thread, for tests.
    #[cfg(test)]
    pub(crate) fn in_a_thread() -> Self {
        let (ours, theirs) = Link::pair().unwrap();
        std::thread::spawn(|| serve(theirs));
        Self(Mutex::new(ours))
    }
}

/// The files that the machine's description names.
#[derive(Debug)]
struct Files {
    read: BTreeSet<PathBuf>,
    written: BTreeSet<PathBuf>,
}

impl Files {
    fn of(machine: &[u8]) -> Self {
        // The manager refuses a description that cannot be read, in words.
        let machine = serde_json::from_slice::<Machine>(machine).ok();
        let domains = machine.into_iter().flat_map(|machine| machine.domains);
        let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
        for device in domains.flat_map(|domain| domain.devices) {
            match device {
                Device::Read(path) => drop(read.insert(path.into())),
                Device::Write(path) => drop(written.insert(path.into())),
                _ => {}
            }
        }
        Self { read, written }
    }
}

/// Serves netd until it ends.
pub(crate) fn serve(link: Link) -> Result<(), String> {
    let mut files = None;
    loop {
        match turn(&link, &mut files) {
            Ok(()) => {}
            Err(LinkError::Closed) => return Ok(()),
            Err(error) => return Err(format!("the link to netd: {error}")),
        }
    }
}

/// Answers the next question, or waits for one.
fn turn(link: &Link, files: &mut Option<Files>) -> Result<(), LinkError> {
    let Some(received) = link.receive::<Want>()? else {
        link.wait(PollFlags::IN, None);
        return Ok(());
    };
    let found = match received.fds.as_slice() {
        [beside, maps @ ..] => answer(received.record.message, (beside, maps), files),
        _ => Err(Errno::INVAL.into()),
    };
    let (message, beside) = match found {
        Ok(beside) => (Found::Done, beside),
        Err(error) => match error.raw_os_error() {
            Some(errno) => (Found::Failed(errno), None),
            None => {
                let why = sealed::write("why", error.to_string().as_bytes())?;
                (Found::Failed(0), Some(why))
            }
        },
    };
    let beside: Vec<BorrowedFd<'_>> = beside.iter().map(AsFd::as_fd).collect();
    // netd takes the answer before it asks again.
    Ok(link.send(&Record { token: 0, message }, &beside)?)
}

fn answer(
    want: Want,
    (beside, maps): (&OwnedFd, &[OwnedFd]),
    files: &mut Option<Files>,
) -> io::Result<Option<OwnedFd>> {
    let bytes = sealed::read(beside, MACHINE_MAX)?;
    let path = Path::new(OsStr::from_bytes(&bytes));
    let known = files.as_ref();
    match want {
        Want::Machine if known.is_some() => Err(io::Error::other("the machine is known already")),
        Want::Machine => {
            *files = Some(Files::of(&bytes));
            Ok(None)
        }
        Want::Places => {
            let paths = bytes.split(|byte| *byte == 0);
            let places = paths.map(|path| place(Path::new(OsStr::from_bytes(path))));
            let words = places.flat_map(Option::unwrap_or_default);
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            sealed::write("places", &bytes).map(Some)
        }
        Want::Namespace => netns::open_here(path).map(Some),
        Want::Load(kind) => {
            let maps: Vec<BorrowedFd<'_>> = maps.iter().map(AsFd::as_fd).collect();
            programs::load_here(kind, &bytes, &maps).map(Some)
        }
        Want::Read => {
            check(known.map(|files| &files.read), path)?;
            let file = OpenOptions::new().read(true).open(path)?;
            Ok(Some(file.into()))
        }
        Want::Write(life) => {
            check(known.map(|files| &files.written), path)?;
            match life {
                0 => create(path).map(Some),
                // What the lives before have written stays.
                life => create_next(path, life).map(Some),
            }
        }
    }
}

/// Whether the machine's description names a file.
fn check(named: Option<&BTreeSet<PathBuf>>, path: &Path) -> io::Result<()> {
    match named.is_some_and(|named| named.contains(path)) {
        true => Ok(()),
        false => Err(io::Error::other(
            "the machine's description does not name it",
        )),
    }
}

/// Makes the first file of a domain's `life` that is not there yet: failed starts leave theirs.
fn create_next(path: &Path, life: u64) -> io::Result<OwnedFd> {
    let mut number = life;
    loop {
        let mut next = path.as_os_str().to_owned();
        next.push(format!(".{number}"));
        match create(Path::new(&next)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made,
        }
    }
}

fn create(path: &Path) -> io::Result<OwnedFd> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(devices: serde_json::Value) -> OwnedFd {
        let machine = serde_json::json!({
            "name": "m",
            "domains": [{
                "name": "d", "program": "guest", "frames": 1, "grant_entries": 1,
                "window_slots": 1, "cpus": [], "config": "", "devices": devices,
            }],
            "connections": [],
        });
        sealed::write("machine", machine.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_broker_opens_no_file_but_the_machines() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        for name in ["in", "other"] {
            std::fs::write(path(name), "secret").unwrap();
        }
        let devices = serde_json::json!([{ "read": path("in") }, { "write": path("out") }]);
        let broker = Broker::in_a_thread();
        let refused = |opened: Result<OwnedFd, String>| {
            let why = opened.unwrap_err();
            assert!(
                why.ends_with("the machine's description does not name it"),
                "{why}"
            );
        };
        refused(broker.read(&path("in")));
        broker.welcome(&machine(devices)).unwrap();
        broker.read(&path("in")).unwrap();
        broker.write(&path("out"), 0).unwrap();
        refused(broker.read(&path("other")));
        refused(broker.read(&path("out")));
        refused(broker.write(&path("in"), 0));
        refused(broker.write(&path("new"), 0));
        assert!(!std::fs::exists(path("new")).unwrap());
        // netd cannot add a file by another description.
        let wider = serde_json::json!([{ "read": path("other") }]);
        let error = broker.welcome(&machine(wider)).unwrap_err();
        assert!(error.to_string().contains("known already"), "{error}");
        refused(broker.read(&path("other")));
    }

    #[test]
    fn no_file_is_written_twice() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out").display().to_string();
        let broker = Broker::in_a_thread();
        let devices = serde_json::json!([{ "write": &out }]);
        broker.welcome(&machine(devices)).unwrap();
        broker.write(&out, 0).unwrap();
        let why = broker.write(&out, 0).unwrap_err();
        assert!(why.contains("File exists"), "{why}");
        broker.write(&out, 1).unwrap();
        broker.write(&out, 1).unwrap();
        let exists = |number: u32| std::fs::exists(format!("{out}.{number}")).unwrap();
        assert_eq!([1, 2, 3].map(exists), [true, true, false]);
    }

    #[test]
    fn a_broker_opens_network_namespaces_alone() {
        let broker = Broker::in_a_thread();
        let opened = broker.namespace(Path::new("/proc/self/ns/net")).unwrap();
        let found = broker.places(&[Path::new("/proc/self/ns/net"), Path::new("/no/such")]);
        let found = found.unwrap();
        let stat = rustix::fs::fstat(&opened).unwrap();
        assert_eq!(found[0].unwrap()[..2], [stat.st_dev, stat.st_ino]);
        assert_eq!(found[1], None);
        for path in [
            "/proc/self/mem",
            "/etc/passwd",
            "/dev/null",
            "/proc/self/fd/0",
        ] {
            let error = broker.namespace(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains("no namespace's file"), "{path}: {error}");
        }
        let error = broker.namespace(Path::new("/no/such")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    }
}
