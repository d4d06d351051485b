//! The broker: a process that opens files and loads BPF programs for netd, which may not do so
//! itself.
//!
//! Landlock denies netd access to all files except the TAP driver and network settings, and to all
//! other processes. But netd also needs four kinds of objects: network namespaces that paths name,
//! including those of other processes; the files of `pcap` devices; settings of interfaces in a
//! sysfs that netd has mounted; and BPF programs, which netd must not load itself, because a
//! program with netd's CAP_SYS_ADMIN could read all memory. netd requests these from its broker
//! over a link. The broker opens only network namespaces, the files in the machine's description,
//! sockets of virtual machine monitors that are in the description or in one folder, and one
//! setting of interfaces. It gives netd only the PCI devices in the description. It loads only
//! programs that access packets. It accepts the description once, before netd opens any device.
//!
//! If the broker exits, netd also exits, and the core restarts both.

use crate::namespace_id::namespace_id;
use crate::sockets;
use abi::core::{Field, MACHINE_MAX, Malformed, Message, Reader, Record, Writer};
use abi::machine::{Device, Machine, NetnsId, VhostUser};
use link::{Link, LinkError, sealed};
use netdev::pci::PciBus;
use netdev::{napi_threads, netns, programs};
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

/// The argument with which this program runs as broker.
pub(crate) const ARGUMENT: &str = "--broker";
/// Maximum bytes of a refusal's reason.
const TEXT_MAX: usize = 64 << 10;
/// Bytes of a [`NetnsId`].
const NETNS_ID_BYTES: usize = 24;

/// netd's requests to its broker. Paths are attached in a sealed memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokerRequest {
    /// Accept the attached description of the machine, whose files may then be opened.
    Machine,
    /// Identify the namespaces at these paths.
    NamespaceIds,
    /// Open the network namespace at this path.
    Namespace,
    /// Open this file for reading.
    Read,
    /// Create this file, for the domain's process number `life`.
    Write(u64),
    /// Load a program of this type. Attached: its code and its maps.
    Load(u32),
    /// Create a listening socket. Attached: its description ([`VhostUser`]).
    Listen,
    /// Connect to the socket at this path.
    Connect,
    /// Remove the socket at this path.
    Remove,
    /// Bind the PCI device at this address to `vfio-pci`, and open its group.
    BindPci,
    /// Open a container for the group of a PCI device.
    Container,
    /// Unbind the PCI device at this address from `vfio-pci`.
    UnbindPci,
    /// Open the setting of NAPI threads of the interface with this name. Attached: the mounted
    /// sysfs of its namespace.
    NapiThreads,
}

/// The broker's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokerReply {
    /// Success. Attached: the requested descriptor or identities, if any.
    Done,
    /// Failure, with an errno, or with 0 and the attached reason.
    Failed(i32),
}

impl Message for BrokerRequest {
    fn put(&self, fields: &mut Writer) -> u32 {
        match self {
            Self::Machine => 1,
            Self::NamespaceIds => 2,
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
            Self::Listen => 7,
            Self::Connect => 8,
            Self::Remove => 9,
            Self::BindPci => 10,
            Self::Container => 11,
            Self::UnbindPci => 12,
            Self::NapiThreads => 13,
        }
    }

    fn take(kind: u32, fields: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match kind {
            1 => Self::Machine,
            2 => Self::NamespaceIds,
            3 => Self::Namespace,
            4 => Self::Read,
            5 => Self::Write(u64::take(fields)?),
            6 => Self::Load(u32::take(fields)?),
            7 => Self::Listen,
            8 => Self::Connect,
            9 => Self::Remove,
            10 => Self::BindPci,
            11 => Self::Container,
            12 => Self::UnbindPci,
            13 => Self::NapiThreads,
            _ => return Err(Malformed::Kind(kind)),
        })
    }
}

impl Message for BrokerReply {
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
    /// Starts a broker, which runs this program. netd must call this before it drops the right to
    /// start programs.
    pub(crate) fn start() -> io::Result<Self> {
        let (ours, theirs) = Link::pair()?;
        // The program that this process runs, even if its path now names another file.
        let mut program = Command::new("/proc/self/exe");
        program.arg(ARGUMENT).stdin(OwnedFd::from(theirs));
        // The broker exits when its link is closed, or by its parent-death signal.
        let _child = program.stdout(Stdio::null()).spawn()?;
        Ok(Self(Mutex::new(ours)))
    }

    /// Sends the machine's description to the broker.
    pub(crate) fn accept_machine(&self, machine: &OwnedFd) -> io::Result<()> {
        self.request(BrokerRequest::Machine, &[machine.as_fd()])
            .map(drop)
    }

    /// Returns the identities of the network namespaces at `paths`.
    pub(crate) fn namespace_ids(&self, paths: &[&Path]) -> io::Result<Vec<Option<NetnsId>>> {
        let names: Vec<&[u8]> = paths
            .iter()
            .map(|path| path.as_os_str().as_bytes())
            .collect();
        let found = self.request_by_path(BrokerRequest::NamespaceIds, &names.join(&0))?;
        let found = sealed::read(&found, paths.len().saturating_mul(NETNS_ID_BYTES))?;
        let namespace_ids = found.chunks_exact(NETNS_ID_BYTES).map(|bytes| {
            let mut words = bytes
                .chunks_exact(8)
                .map(|word| word.try_into().map_or(0, u64::from_le_bytes));
            let id: NetnsId = std::array::from_fn(|_| words.next().unwrap_or(0));
            Some(id).filter(|id| *id != NetnsId::default())
        });
        let namespace_ids: Vec<_> = namespace_ids.collect();
        match namespace_ids.len() == paths.len() {
            true => Ok(namespace_ids),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Opens the network namespace at `path`.
    pub(crate) fn namespace(&self, path: &Path) -> io::Result<OwnedFd> {
        self.request_by_path(BrokerRequest::Namespace, path.as_os_str().as_bytes())
    }

    /// Opens a file of the machine for reading.
    pub(crate) fn read(&self, path: &str) -> Result<OwnedFd, String> {
        let opened = self.request_by_path(BrokerRequest::Read, path.as_bytes());
        opened.map_err(|error| format!("the file {path} cannot be read: {error}"))
    }

    /// Creates a file of the machine for the domain's process number `life`. Each process has a
    /// separate file.
    pub(crate) fn write(&self, path: &str, life: u64) -> Result<OwnedFd, String> {
        let made = self.request_by_path(BrokerRequest::Write(life), path.as_bytes());
        made.map_err(|error| format!("the file {path} cannot be created: {error}"))
    }

    /// Creates the listening socket of a virtual machine monitor.
    pub(crate) fn listen(&self, spec: &VhostUser) -> Result<OwnedFd, String> {
        let description = serde_json::to_vec(spec).map_err(|e| e.to_string())?;
        let made = self.request_by_path(BrokerRequest::Listen, &description);
        made.map_err(|error| format!("the socket {} cannot be created: {error}", spec.path))
    }

    /// Connects to the socket of a virtual machine monitor.
    pub(crate) fn connect(&self, path: &str) -> io::Result<OwnedFd> {
        self.request_by_path(BrokerRequest::Connect, path.as_bytes())
    }

    /// Removes the file of a listening socket.
    pub(crate) fn remove(&self, path: &str) -> io::Result<()> {
        let path = sealed::write("paths", path.as_bytes())?;
        self.request(BrokerRequest::Remove, &[path.as_fd()])
            .map(drop)
    }

    /// Binds a PCI device to `vfio-pci`. Returns the descriptors of a container and of its group.
    pub(crate) fn bind_pci(&self, address: &str) -> io::Result<[OwnedFd; 2]> {
        // Without a container, the device must not be bound.
        let container = self.request_by_path(BrokerRequest::Container, address.as_bytes())?;
        let group = self.request_by_path(BrokerRequest::BindPci, address.as_bytes())?;
        Ok([container, group])
    }

    /// Unbinds a PCI device from `vfio-pci`.
    pub(crate) fn unbind_pci(&self, address: &str) -> io::Result<()> {
        let address = sealed::write("address", address.as_bytes())?;
        self.request(BrokerRequest::UnbindPci, &[address.as_fd()])
            .map(drop)
    }

    /// Loads a program: see [`programs::load_here`].
    pub(crate) fn load(
        &self,
        kind: u32,
        code: &[u8],
        maps: &[BorrowedFd<'_>],
    ) -> io::Result<OwnedFd> {
        let code = sealed::write("program", code)?;
        let attachment = [code.as_fd()].into_iter().chain(maps.iter().copied());
        let loaded = self.request(BrokerRequest::Load(kind), &attachment.collect::<Vec<_>>())?;
        loaded.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Opens the setting of NAPI threads of an interface: see [`napi_threads::open_here`].
    pub(crate) fn napi_threads(&self, sysfs: BorrowedFd<'_>, ifname: &str) -> io::Result<OwnedFd> {
        let name = sealed::write("ifname", ifname.as_bytes())?;
        let opened = self.request(BrokerRequest::NapiThreads, &[name.as_fd(), sysfs])?;
        opened.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn request_by_path(&self, message: BrokerRequest, paths: &[u8]) -> io::Result<OwnedFd> {
        let paths = sealed::write("paths", paths)?;
        let found = self.request(message, &[paths.as_fd()])?;
        found.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Sends a request and waits for the answer. The lock serializes requests, so each answer
    /// belongs to the last request.
    fn request(
        &self,
        message: BrokerRequest,
        attachment: &[BorrowedFd<'_>],
    ) -> io::Result<Option<OwnedFd>> {
        let link = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = link.send(&Record { token: 0, message }, attachment);
        let answer = sent.map_err(LinkError::from).and_then(|()| {
            loop {
                match link.receive::<BrokerReply>() {
                    Ok(None) => link.wait(PollFlags::IN, None),
                    received => break received,
                }
            }
        });
        let Ok(Some(answer)) = answer else {
            // netd cannot work without a broker; the core restarts both.
            eprintln!("grantway-netd: its broker has exited");
            std::process::exit(1);
        };
        let attachment = answer.fds.into_iter().next();
        match (answer.record.message, attachment) {
            (BrokerReply::Done, attachment) => Ok(attachment),
            (BrokerReply::Failed(_), Some(why)) => {
                let why = sealed::read(&why, TEXT_MAX)?;
                Err(io::Error::other(String::from_utf8_lossy(&why)))
            }
            (BrokerReply::Failed(errno), None) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Returns a broker that runs in a thread, for tests.
    #[cfg(test)]
    pub(crate) fn in_a_thread() -> Self {
        let (ours, theirs) = Link::pair().unwrap();
        std::thread::spawn(|| serve(theirs));
        Self(Mutex::new(ours))
    }
}

/// The files in the machine's description.
#[derive(Debug, Default)]
struct BrokerFiles {
    read: BTreeSet<PathBuf>,
    written: BTreeSet<PathBuf>,
    sockets: BTreeSet<PathBuf>,
    /// Addresses of PCI devices.
    pci: BTreeSet<PathBuf>,
}

impl BrokerFiles {
    fn of(machine: &[u8]) -> Self {
        // An invalid description is ignored, because the manager rejects it with a reason.
        let machine = serde_json::from_slice::<Machine>(machine).ok();
        let domains = machine.into_iter().flat_map(|machine| machine.domains);
        let mut files = Self::default();
        for device in domains.flat_map(|domain| domain.devices) {
            let (kind, path) = match device {
                Device::Read(path) => (&mut files.read, path),
                Device::Write(path) => (&mut files.written, path),
                Device::VhostUser(socket) => (&mut files.sockets, socket.path),
                Device::Pci(pci) => (&mut files.pci, pci.address),
                _ => continue,
            };
            kind.insert(path.into());
        }
        files
    }

    /// Checks that a socket may be created at `path`.
    fn check_socket(known: Option<&Self>, path: &Path) -> io::Result<()> {
        if sockets::is_allowed_without_description(path) {
            return Ok(());
        }
        check(known.map(|files| &files.sockets), path).map_err(|_| {
            let folder = sockets::FOLDER;
            let why = format!(
                "the configuration with which the machine was started does not name it; choose a \
                 path below {folder}"
            );
            io::Error::other(why)
        })
    }
}

/// Serves netd until it exits.
pub(crate) fn serve(link: Link) -> Result<(), String> {
    let mut files = None;
    loop {
        match answer_next(&link, &mut files) {
            Ok(()) => {}
            Err(LinkError::Closed) => return Ok(()),
            Err(error) => return Err(format!("the link to netd: {error}")),
        }
    }
}

/// Answers the next request, or waits for one.
fn answer_next(link: &Link, files: &mut Option<BrokerFiles>) -> Result<(), LinkError> {
    let Some(received) = link.receive::<BrokerRequest>()? else {
        link.wait(PollFlags::IN, None);
        return Ok(());
    };
    let found = match received.fds.as_slice() {
        [attachment, maps @ ..] => answer(received.record.message, (attachment, maps), files),
        _ => Err(Errno::INVAL.into()),
    };
    let (message, attachment) = match found {
        Ok(attachment) => (BrokerReply::Done, attachment),
        Err(error) => match error.raw_os_error() {
            Some(errno) => (BrokerReply::Failed(errno), None),
            None => {
                let why = sealed::write("why", error.to_string().as_bytes())?;
                (BrokerReply::Failed(0), Some(why))
            }
        },
    };
    let attachment: Vec<BorrowedFd<'_>> = attachment.iter().map(AsFd::as_fd).collect();
    // The link has space, because netd reads each answer before its next request.
    Ok(link.send(&Record { token: 0, message }, &attachment)?)
}

fn answer(
    message: BrokerRequest,
    (attachment, maps): (&OwnedFd, &[OwnedFd]),
    files: &mut Option<BrokerFiles>,
) -> io::Result<Option<OwnedFd>> {
    let bytes = sealed::read(attachment, MACHINE_MAX)?;
    let path = Path::new(OsStr::from_bytes(&bytes));
    let known = files.as_ref();
    match message {
        BrokerRequest::Machine if known.is_some() => {
            Err(io::Error::other("the machine is already known"))
        }
        BrokerRequest::Machine => {
            *files = Some(BrokerFiles::of(&bytes));
            Ok(None)
        }
        BrokerRequest::NamespaceIds => {
            let paths = bytes.split(|byte| *byte == 0);
            let namespace_ids = paths.map(|path| namespace_id(Path::new(OsStr::from_bytes(path))));
            let words = namespace_ids.flat_map(Option::unwrap_or_default);
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            sealed::write("namespace_ids", &bytes).map(Some)
        }
        BrokerRequest::Namespace => netns::open_here(path).map(Some),
        BrokerRequest::Load(kind) => {
            let maps: Vec<BorrowedFd<'_>> = maps.iter().map(AsFd::as_fd).collect();
            programs::load_here(kind, &bytes, &maps).map(Some)
        }
        BrokerRequest::NapiThreads => {
            let sysfs = maps.first().ok_or(Errno::INVAL)?;
            napi_threads::open_here(sysfs.as_fd(), &path.to_string_lossy()).map(Some)
        }
        BrokerRequest::Listen => {
            let spec: VhostUser = serde_json::from_slice(&bytes)?;
            BrokerFiles::check_socket(known, Path::new(&spec.path))?;
            sockets::create(&spec).map(Some)
        }
        BrokerRequest::Connect => {
            BrokerFiles::check_socket(known, path)?;
            sockets::connect_to(path).map(Some)
        }
        BrokerRequest::Remove => {
            BrokerFiles::check_socket(known, path)?;
            sockets::remove(path).map(|()| None)
        }
        BrokerRequest::BindPci | BrokerRequest::Container | BrokerRequest::UnbindPci => {
            check(known.map(|files| &files.pci), path)?;
            let (bus, address) = (PciBus::default(), path.to_string_lossy());
            match message {
                BrokerRequest::BindPci => bus.bind(&address).map(Some).map_err(io::Error::other),
                BrokerRequest::Container => bus.container().map(Some),
                _ => bus
                    .unbind(&address)
                    .map(|()| None)
                    .map_err(io::Error::other),
            }
        }
        BrokerRequest::Read => {
            check(known.map(|files| &files.read), path)?;
            let file = OpenOptions::new().read(true).open(path)?;
            Ok(Some(file.into()))
        }
        BrokerRequest::Write(life) => {
            check(known.map(|files| &files.written), path)?;
            match life {
                0 => create(path).map(Some),
                // The files of earlier processes remain.
                life => create_next(path, life).map(Some),
            }
        }
    }
}

/// Checks that a file is in the machine's description.
fn check(named: Option<&BTreeSet<PathBuf>>, path: &Path) -> io::Result<()> {
    match named.is_some_and(|named| named.contains(path)) {
        true => Ok(()),
        false => Err(io::Error::other(
            "the machine's description does not name it",
        )),
    }
}

/// Creates the file with the first free number from `life` on, because failed starts leave files
/// behind.
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
    fn a_broker_opens_only_the_machines_files() {
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
        broker.accept_machine(&machine(devices)).unwrap();
        broker.read(&path("in")).unwrap();
        broker.write(&path("out"), 0).unwrap();
        refused(broker.read(&path("other")));
        refused(broker.read(&path("out")));
        refused(broker.write(&path("in"), 0));
        refused(broker.write(&path("new"), 0));
        assert!(!std::fs::exists(path("new")).unwrap());
        // netd cannot add a file by a second description.
        let wider = serde_json::json!([{ "read": path("other") }]);
        let error = broker.accept_machine(&machine(wider)).unwrap_err();
        assert!(error.to_string().contains("already known"), "{error}");
        refused(broker.read(&path("other")));
    }

    #[test]
    fn every_process_gets_a_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out").display().to_string();
        let broker = Broker::in_a_thread();
        let devices = serde_json::json!([{ "write": &out }]);
        broker.accept_machine(&machine(devices)).unwrap();
        broker.write(&out, 0).unwrap();
        let why = broker.write(&out, 0).unwrap_err();
        assert!(why.contains("File exists"), "{why}");
        broker.write(&out, 1).unwrap();
        broker.write(&out, 1).unwrap();
        let exists = |number: u32| std::fs::exists(format!("{out}.{number}")).unwrap();
        assert_eq!([1, 2, 3].map(exists), [true, true, false]);
    }

    #[test]
    fn a_broker_opens_only_network_namespaces() {
        let broker = Broker::in_a_thread();
        let opened = broker.namespace(Path::new("/proc/self/ns/net")).unwrap();
        let found = broker.namespace_ids(&[Path::new("/proc/self/ns/net"), Path::new("/no/such")]);
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
            assert!(error.contains("not a namespace file"), "{path}: {error}");
        }
        let error = broker.namespace(Path::new("/no/such")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    }
}
