//! Opens what domains attach. This is the one place where the monitor's program knows what a
//! device is.

use abi::hypercall::TapControl;
use abi::layout::fd;
use abi::machine;
use abi::xdp::{Ring, XdpControl};
use abi::{DomId, PAGE, Slot};
use monitor::{Device, DeviceControl, DeviceMap, Pin};
use netdev::xdp::{QueueSocket, RingPages, XdpDevice};
use netdev::{SetupError, SteerError, Steering, Uplink, xdp};
use rustix::io::Errno;
use shmem::Span;
use shmem::rate::TokenBucket;
use shmem::time::monotonic_ns;
use std::collections::{BTreeMap, VecDeque};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, PoisonError};

/// Changes of a TAP's steering in a row, before [`STEERS_PER_SECOND`] counts: more than one for
/// each guest interface, which is what a driver domain begins with.
const STEERS_BURST: u32 = 4 * fd::CONNECTIONS_MAX;
/// The same, a second, in the long run: each asks the whole system for a grace period.
const STEERS_PER_SECOND: u64 = 4096;

/// What status says where no TAP can be told which queue a frame goes to.
const NO_STEERING: &str = "NIC queues for single guests (bpf(2) is not permitted)";

/// Shared queues of TAPs that no domain has been given yet, by interface and namespace.
pub(crate) type Shares = BTreeMap<(String, Option<String>), VecDeque<OwnedFd>>;

/// Why a domain does not get its devices: it has none of them then.
pub(crate) struct Refusal {
    pub(crate) why: String,
    /// Whether the kernel has not released yet what was there before.
    pub(crate) is_busy: bool,
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self {
            why,
            is_busy: false,
        }
    }
}

impl From<SetupError> for Refusal {
    fn from(error: SetupError) -> Self {
        Self {
            why: error.to_string(),
            is_busy: error.is_busy(),
        }
    }
}

/// A domain's devices, as they outlive its processes.
pub(crate) struct Devices {
    domain: String,
    kept: Vec<Kept>,
    /// What joins its TAPs to networks.
    _uplinks: Vec<Uplink>,
}

/// One of them.
enum Kept {
    /// A TAP, or a queue of one: its descriptor is all there is to it.
    Tap(OwnedFd, Option<Arc<Steering>>),
    /// A wire, of which each life has a socket of its own, over frames of its own.
    Xdp(Arc<xdp::Wire>, machine::Xdp),
    /// A queue of one, of which each life has a socket of its own, over frames of a guest's.
    XdpQueue(Arc<xdp::Wire>, machine::XdpQueue),
    /// Files that are opened anew for each life.
    Read(String),
    Write(String),
}

impl Devices {
    /// Opens every device of a domain; and what the system could not provide. What TAPs have for
    /// further domains goes to `shares`.
    pub(crate) fn open(
        domain: &machine::Domain,
        shares: &mut Shares,
    ) -> Result<(Self, Vec<&'static str>), String> {
        let mut kept = Vec::new();
        let mut lacks = Vec::new();
        let mut queues = VecDeque::new();
        let mut uplinks = Vec::new();
        let mut last: Option<Arc<xdp::Wire>> = None;
        for device in &domain.devices {
            let wrong = |error: String| format!("domain {}: {error}", domain.name);
            kept.push(match device {
                machine::Device::Tap(tap) => {
                    let place = (tap.ifname.clone(), tap.netns.clone());
                    let tap = netdev::open_queues(tap).map_err(|error| wrong(error.to_string()))?;
                    queues = tap.queues.into();
                    uplinks.extend(tap.uplink);
                    shares.insert(place, tap.shares.into());
                    let steering = match tap.steering {
                        Some(Ok(steering)) => Some(Arc::new(steering)),
                        Some(Err(error)) => {
                            eprintln!("grantwayd: {error}");
                            lacks.push(NO_STEERING);
                            None
                        }
                        None => None,
                    };
                    Kept::Tap(tap.shared, steering)
                }
                machine::Device::TapQueue => {
                    let queue = queues.pop_front();
                    let queue =
                        queue.ok_or_else(|| wrong("a queue without a TAP before it".into()));
                    Kept::Tap(queue?, None)
                }
                machine::Device::TapShare { ifname, netns } => {
                    let left = shares.get_mut(&(ifname.clone(), netns.clone()));
                    let share = left.and_then(VecDeque::pop_front);
                    let share =
                        share.ok_or_else(|| wrong(format!("the TAP {ifname} has no queue left")));
                    Kept::Tap(share?, None)
                }
                machine::Device::Xdp(spec) => {
                    let wire = xdp::Wire::open(spec).map_err(|error| wrong(error.to_string()))?;
                    lacks.extend(wire.lacks());
                    let wire = Arc::new(wire);
                    last = Some(Arc::clone(&wire));
                    Kept::Xdp(wire, spec.clone())
                }
                machine::Device::XdpQueue(spec) => {
                    let wire = last.clone();
                    let wire = wire.ok_or_else(|| wrong("a queue without an AF_XDP wire".into()));
                    Kept::XdpQueue(wire?, spec.clone())
                }
                machine::Device::Read(path) => Kept::Read(path.clone()),
                machine::Device::Write(path) => Kept::Write(path.clone()),
            });
        }
        let domain = domain.name.clone();
        let devices = Self {
            domain,
            kept,
            _uplinks: uplinks,
        };
        Ok((devices, lacks))
    }

    /// What the domain gets that has `frames`, in order; `life` domains had them before. `of` tells
    /// id and frames of another domain by its name: what is over the memory of one that is no more
    /// is none.
    pub(crate) fn hand_out(
        &self,
        frames: Span,
        life: u64,
        of: impl Fn(&str) -> Option<(DomId, Span)>,
    ) -> Result<Vec<Option<Device>>, Refusal> {
        let give = |kept: &Kept| -> Result<Option<Device>, Refusal> {
            let device = match kept {
                Kept::Tap(fd, steering) => {
                    let fd = fd.try_clone().map_err(|error| format!("a TAP: {error}"))?;
                    let control = steering.clone().map(TapSteering::control);
                    Device {
                        control,
                        ..fd.into()
                    }
                }
                Kept::Xdp(wire, spec) => socket(wire, spec, frames)?,
                Kept::XdpQueue(wire, spec) => match of(&spec.guest) {
                    Some(guest) => queue(wire, spec, guest)?,
                    None => return Ok(None),
                },
                Kept::Read(path) => open_read(path)?.into(),
                Kept::Write(path) if life == 0 => open_write(path)?.into(),
                // What the ones before have written stays.
                Kept::Write(path) => open_next(path, life)?.into(),
            };
            Ok(Some(device))
        };
        let mut devices: Vec<_> = self.kept.iter().map(|_| None).collect();
        // Files last: who does not get the rest leaves none.
        for files in [false, true] {
            for (place, kept) in devices.iter_mut().zip(&self.kept) {
                if matches!(kept, Kept::Read(_) | Kept::Write(_)) == files {
                    *place = give(kept).map_err(|refusal| Refusal {
                        why: format!("domain {}: {}", self.domain, refusal.why),
                        ..refusal
                    })?;
                }
            }
        }
        Ok(devices)
    }
}

/// Some of a domain's frames.
fn part(frames: Span, first: u32, count: u32) -> Result<Span, String> {
    let bytes = |pages: u32| pages as usize * PAGE;
    let umem = frames.sub(bytes(first), bytes(count));
    umem.ok_or("an AF_XDP socket over frames that the domain does not have".into())
}

/// An AF_XDP socket over part of its domain's frames.
fn socket(wire: &Arc<xdp::Wire>, spec: &machine::Xdp, frames: Span) -> Result<Device, Refusal> {
    let umem = part(frames, spec.first_frame, spec.frames)?;
    let device = wire.bind(umem)?;
    Ok(Device {
        pages: places(&device.ring_pages(), spec.rings_slot, spec.entries)?,
        fd: descriptor("an AF_XDP socket", device.socket())?,
        control: Some(Arc::new(XdpSocket(device))),
        pin: None,
    })
}

/// A queue of an AF_XDP wire over part of a guest's frames.
fn queue(
    wire: &xdp::Wire,
    spec: &machine::XdpQueue,
    (of, frames): (DomId, Span),
) -> Result<Device, Refusal> {
    let umem = part(frames, spec.first_frame, spec.frames)?;
    let device = wire.queue(spec, umem)?;
    Ok(Device {
        pages: places(&device.ring_pages(), spec.rings_slot, spec.entries)?,
        fd: descriptor("a queue of an AF_XDP wire", device.socket())?,
        control: Some(Arc::new(XdpQueue(device))),
        pin: Some(Pin {
            of,
            first: spec.first_frame,
            frames: spec.frames,
        }),
    })
}

/// What a domain gets of a socket.
fn descriptor(what: &str, socket: &xdp::Socket) -> Result<OwnedFd, String> {
    let fd = socket.as_fd().try_clone_to_owned();
    fd.map_err(|error| format!("{what}: {error}"))
}

/// Where the parts of rings of `entries` entries lie in the window, from slot `first` on.
fn places(rings: &[RingPages], first: u32, entries: u32) -> Result<Vec<DeviceMap>, String> {
    let slots = Ring::slots(entries);
    let all = (0..).zip(rings).map(|(place, part)| {
        let slot = slots.checked_mul(place)?.checked_add(first)?;
        (part.pages <= slots).then_some(DeviceMap {
            slot: Slot(slot),
            page: part.page,
            pages: part.pages,
        })
    });
    let all: Option<_> = all.collect();
    all.ok_or_else(|| "this kernel's AF_XDP rings do not fit their slots".into())
}

fn open_read(path: &str) -> Result<OwnedFd, String> {
    OpenOptions::new()
        .read(true)
        .open(path)
        .map(OwnedFd::from)
        .map_err(|error| format!("the file {path} cannot be read: {error}"))
}

fn open_write(path: &str) -> Result<OwnedFd, String> {
    create(path).map_err(|error| format!("the file {path} cannot be made: {error}"))
}

/// The first file of a domain's `life` that is not there: starts that failed have left theirs.
fn open_next(path: &str, life: u64) -> Result<OwnedFd, String> {
    let mut number = life;
    loop {
        let next = format!("{path}.{number}");
        match create(&next) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(format!("the file {next} cannot be made: {error}")),
            Ok(file) => return Ok(file),
        }
    }
}

fn create(path: &str) -> io::Result<OwnedFd> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    Ok(file.into())
}

/// A TAP whose domain may lead frames to its queues. Which MACs it may lead was fixed when the TAP
/// was set up, and each life may lead as often as the one before.
#[derive(Debug)]
struct TapSteering {
    steering: Arc<Steering>,
    budget: Mutex<TokenBucket>,
}

impl TapSteering {
    fn control(steering: Arc<Steering>) -> Arc<dyn DeviceControl> {
        let budget = TokenBucket::new(STEERS_PER_SECOND, STEERS_BURST);
        let budget = Mutex::new(budget);
        Arc::new(Self { steering, budget })
    }
}

impl DeviceControl for TapSteering {
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno> {
        match TapControl::decode(words).ok_or(Errno::INVAL)? {
            TapControl::Steer { mac, queue } => {
                let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
                if !budget.take(monotonic_ns(), 1) {
                    return Err(Errno::AGAIN);
                }
                self.steering
                    .steer(mac, queue)
                    .map_err(|error| match error {
                        SteerError::Mac => Errno::PERM,
                        SteerError::Queue => Errno::NXIO,
                        SteerError::System(error) => errno(&error),
                    })
            }
            TapControl::Settled => Ok(self.steering.effective()),
        }
    }
}

/// An AF_XDP socket, of which its domain may learn where its rings lie and what the kernel counts.
#[derive(Debug)]
struct XdpSocket(XdpDevice);

impl DeviceControl for XdpSocket {
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno> {
        told(self.0.socket(), words, |_| Err(Errno::INVAL))
    }
}

/// A queue of an AF_XDP wire. Whose frames come by it was fixed when it was set up.
#[derive(Debug)]
struct XdpQueue(QueueSocket);

impl DeviceControl for XdpQueue {
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno> {
        told(self.0.socket(), words, |asked| {
            let answer = match asked {
                XdpControl::Enable => self.0.enable().map(|()| 0),
                XdpControl::Stop => {
                    self.0.end();
                    Ok(0)
                }
                XdpControl::DeniedFrames(rule) => self.0.denied(rule).map(|[frames, _]| frames),
                XdpControl::DeniedBytes(rule) => self.0.denied(rule).map(|[_, bytes]| bytes),
                _ => return Err(Errno::INVAL),
            };
            answer.map_err(|error| errno(&error))
        })
    }

    fn end(&self) {
        self.0.end();
    }
}

/// What the domain that has a socket is told; `queue` says what a queue for a single guest says
/// besides.
fn told(
    socket: &xdp::Socket,
    words: [u64; 2],
    queue: impl FnOnce(XdpControl) -> Result<u64, Errno>,
) -> Result<u64, Errno> {
    match XdpControl::decode(words).ok_or(Errno::INVAL)? {
        XdpControl::Layout(ring) => Ok(socket.layout(ring).encode()),
        XdpControl::Counter(counter) => socket.counter(counter).map_err(|error| errno(&error)),
        asked => queue(asked),
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
