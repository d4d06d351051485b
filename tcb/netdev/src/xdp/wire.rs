//! A wire: an interface whose packets a socket receives. It is an existing interface or one end of
//! a new veth pair.

use super::queues::{QueuePaths, QueueSocket};
use super::shared::{QUEUE, RingPages};
use super::socket::{self, XdpSocket};
use crate::bpf::attach_xdp;
use crate::error::NetError;
use crate::ethtool::{Ethtool, RX_VLAN_FEATURES, TX_TSO_FEATURES, TX_VLAN_FEATURES};
use crate::interface::{InterfaceNetwork, check, configure, failed, in_namespace, namespace};
use crate::netlink::Netlink;
use crate::netns::{self, Namespace};
use abi::machine::Tap as TapSpec;
use abi::machine::{Netdev, Xdp, XdpQueue};
use abi::xdp::Ring;
use shmem::umem::{self, Umem};
use shmem::{Region, Span};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Name of the pair's end to which the socket is bound. No other interface is in its namespace.
const NEAR: &str = "xdp0";
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

const BOUND_STEP: &str = "given to an AF_XDP socket";
const PRIVILEGES: &str = "AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF outside a user \
                          namespace, and Linux 6.4; use kind = \"tap\" if they are missing";
const TCX: &str = "dedicated queues need programs at egress (Linux 6.6); leave \
                   queues = \"vmq\" out otherwise";

/// An interface, and the programs that direct its packets to the open socket, if any. It outlives
/// the domain that uses the socket.
#[derive(Debug)]
pub struct XdpInterface {
    spec: Xdp,
    /// Features that this system lacks.
    lacks: Vec<&'static str>,
    /// The programs and maps that direct the frames, removed with the last queue.
    paths: Arc<QueuePaths>,
    /// The socket that keeps the interface promiscuous.
    promiscuous: Option<OwnedFd>,
    // This field is declared last, so that the pair is dropped after the sockets and programs that
    // are bound to it.
    pair: Option<Pair>,
}

/// A socket that receives the packets of a wire.
#[derive(Debug)]
pub struct XdpDevice {
    socket: XdpSocket,
    /// The wire to which the socket is bound.
    _wire: Arc<XdpInterface>,
}

/// Sets up the wire of `spec`, with a socket that receives into `umem` and sends from it.
///
/// # Errors
/// Returns the errors of [`XdpInterface::open`] and [`XdpInterface::bind`].
pub fn open(spec: &Xdp, umem: Span) -> Result<XdpDevice, NetError> {
    Arc::new(XdpInterface::open(spec)?).bind(umem)
}

/// Checks whether this process can set up AF_XDP sockets: sets one up and removes it.
///
/// # Errors
/// Returns the reason why it cannot.
pub fn probe() -> Result<(), NetError> {
    const PAGES: u32 = 32;
    let far = TapSpec {
        ifname: "probe".into(),
        mtu: 1500,
        ..TapSpec::default()
    };
    let refused = || failed(&far, "tried", PRIVILEGES);
    let namespace = Namespace::new().map_err(refused())?;
    let memory = Region::create("probe", PAGES as usize * abi::PAGE).map_err(refused())?;
    let spec = Xdp {
        netdev: Netdev::Veth(TapSpec {
            netns: Some(namespace.path().display().to_string()),
            ..far.clone()
        }),
        first_frame: 0,
        frames: PAGES,
        chunk_bytes: (abi::PAGE / 2) as u32,
        entries: PAGES,
        rings_slot: 0,
        queues: 0,
    };
    open(&spec, memory.span()).map(drop)
}

/// Checks, without creating a socket, whether a socket can use the interface `ifname` of a
/// namespace.
///
/// # Errors
/// Returns an error if the interface does not exist or is down, or its number of queues is not
/// `queues` + 1.
pub fn inspect(ifname: &str, netns: Option<&str>, queues: u32) -> Result<(), NetError> {
    in_namespace(netns, || inspect_here(ifname, netns, queues))?
}

fn inspect_here(ifname: &str, netns: Option<&str>, queues: u32) -> Result<(), NetError> {
    let (interface, namespace) = (ifname.to_owned(), namespace(netns));
    let found = Netlink::open().and_then(|netlink| netlink.index(ifname));
    if let Err(error) = found {
        return Err(NetError::NoInterface {
            interface,
            namespace,
            error,
        });
    }
    match Ethtool::open(ifname).and_then(|ethtool| ethtool.receive_queues()) {
        Ok(found) if found == queues + 1 => Ok(()),
        Ok(found) => Err(NetError::Queues {
            interface,
            queues: found,
            wanted: queues + 1,
        }),
        Err(error) => Err(NetError::Step {
            interface,
            namespace,
            step: "queried for its queues",
            error,
            hint: "see the kernel's log",
        }),
    }
}

/// Whether received frames contain checksums and VLAN tags.
#[derive(Clone, Copy)]
struct ReceivedFrames {
    checksums: bool,
    tags: bool,
}

impl ReceivedFrames {
    const ALL: Self = Self {
        checksums: true,
        tags: true,
    };
}

/// Makes a veth's end send frames with checksums and VLAN tags.
fn send_complete_frames(ifname: &str) -> io::Result<()> {
    let ethtool = Ethtool::open(ifname)?;
    ethtool.fill_in_checksums()?;
    ethtool.switch_off(&TX_VLAN_FEATURES).map(drop)
}

/// Makes an interface, and for a veth the other end, leave checksums and VLAN tags in frames,
/// because a socket receives only a frame's bytes. Returns whether this succeeded: it may fail if
/// the other end is in another namespace, or if the NIC always strips tags.
fn receive_complete_frames(ifname: &str) -> io::Result<ReceivedFrames> {
    let ethtool = Ethtool::open(ifname)?;
    let tags = ethtool.switch_off(&RX_VLAN_FEATURES)?;
    if !ethtool.is_veth()? {
        return Ok(ReceivedFrames {
            tags,
            ..ReceivedFrames::ALL
        });
    }
    let mut netlink = Netlink::open()?;
    let index = netlink.index(ifname)?;
    let Some(other) = netlink.other_end(index)? else {
        return Ok(ReceivedFrames {
            checksums: false,
            tags: false,
        });
    };
    let name = netlink.name(other)?;
    send_complete_frames(&name)?;
    Ok(ReceivedFrames {
        tags,
        ..ReceivedFrames::ALL
    })
}

/// Makes an interface accept frames for all addresses until the returned socket is closed.
fn promiscuous(ifname: &str) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
    // A socket without a protocol receives nothing.
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let request = libc::packet_mreq {
        mr_ifindex: Netlink::open()?.index(ifname)? as libc::c_int,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: the option reads one such struct, whose size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const request).cast(),
            size_of_val(&request) as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(socket)
    }
}

/// The programs that direct an interface's packets to sockets.
struct AttachedPrograms {
    paths: QueuePaths,
    native: bool,
}

impl AttachedPrograms {
    /// Attaches the programs, in the calling thread's namespace.
    fn new(ifname: &str, queues: u32) -> io::Result<Self> {
        let mut netlink = Netlink::open()?;
        let index = netlink.index(ifname)?;
        let mut paths = QueuePaths::new(queues)?;
        let program = paths.program(queues)?;
        let native = attach_xdp(&program, index, XDP_FLAGS_DRV_MODE);
        let (link, native) = match native {
            Ok(link) => (link, true),
            Err(_) => (attach_xdp(&program, index, XDP_FLAGS_SKB_MODE)?, false),
        };
        paths.store_link(link);
        netlink.set_up(index)?;
        Ok(Self { paths, native })
    }

    fn into_wire(
        self,
        spec: &Xdp,
        whole: ReceivedFrames,
        promiscuous: Option<OwnedFd>,
        pair: Option<Pair>,
    ) -> XdpInterface {
        let slow = "XDP in a NIC's driver (packets take the kernel's slower, generic way)";
        let undone =
            "whole checksums from a veth's end in another namespace (ethtool -K NAME tx off)";
        let untagged = "VLAN tags in received frames (ethtool -K NAME rxvlan off; of a veth's \
                        other end in another namespace: txvlan off)";
        let lacks = [
            (!self.native, slow),
            (!whole.checksums, undone),
            (!whole.tags, untagged),
        ];
        XdpInterface {
            spec: spec.clone(),
            lacks: lacks
                .into_iter()
                .filter_map(|(lacks, what)| lacks.then_some(what))
                .collect(),
            paths: Arc::new(self.paths),
            promiscuous,
            pair,
        }
    }
}

impl XdpInterface {
    /// Sets up the interface that `spec` describes. Packets are dropped until a socket is bound.
    ///
    /// The calling thread's namespace does not change.
    ///
    /// # Errors
    /// Returns an error that names the failed step, the interface, the namespace and a remedy.
    pub fn open(spec: &Xdp) -> Result<Self, NetError> {
        match &spec.netdev {
            Netdev::Veth(far) => {
                check(far)?;
                let network = InterfaceNetwork::of(far)?;
                let pair = Pair::new(far, spec.queues + 1)?;
                let opened = pair.near.enter(|| {
                    let step = |step| failed(far, step, PRIVILEGES);
                    AttachedPrograms::new(NEAR, spec.queues)
                        .map_err(step("made the wire of an AF_XDP socket"))
                });
                let mut attached = opened.map_err(failed(far, "entered", PRIVILEGES))??;
                in_namespace(far.netns.as_deref(), || {
                    if spec.queues > 0 {
                        let step = "configured to select queues";
                        let chosen = attached.paths.select_queues_at(&far.ifname);
                        chosen.map_err(failed(far, step, TCX))?;
                    }
                    configure(far, &network)
                })??;
                Ok(attached.into_wire(spec, ReceivedFrames::ALL, None, Some(pair)))
            }
            Netdev::Existing { ifname, netns } => {
                let (attached, whole, promiscuous) = in_namespace(netns.as_deref(), || {
                    let place = place(ifname, netns);
                    inspect_here(ifname, netns.as_deref(), spec.queues)?;
                    let step = "configured to carry complete frames";
                    let hint = "its VLAN tags or the checksums of its other end cannot be \
                                switched off";
                    let whole =
                        receive_complete_frames(ifname).map_err(failed(&place, step, hint))?;
                    let attach_failed = failed(&place, BOUND_STEP, PRIVILEGES);
                    let attached =
                        AttachedPrograms::new(ifname, spec.queues).map_err(attach_failed)?;
                    let describe = failed(&place, "made promiscuous", PRIVILEGES);
                    Ok((attached, whole, promiscuous(ifname).map_err(describe)?))
                })??;
                Ok(attached.into_wire(spec, whole, Some(promiscuous), None))
            }
        }
    }

    /// Creates the wire's socket, which receives packets into `umem` and sends from it. A wire has
    /// one socket at a time.
    ///
    /// # Errors
    /// Returns an error that names the failed step. For some milliseconds after the previous socket
    /// was closed, the kernel may report that the interface is busy.
    pub fn bind(self: &Arc<Self>, umem: Span) -> Result<XdpDevice, NetError> {
        let socket = self.socket()?;
        let spec = &self.spec;
        let umem = Umem {
            span: umem,
            chunk_bytes: spec.chunk_bytes,
            entries: spec.entries,
            transmits: true,
        };
        umem::register(&socket, &umem).map_err(failed(&self.place(), BOUND_STEP, PRIVILEGES))?;
        self.bind_socket(socket)
    }

    /// Creates a socket without memory that is not bound. Once it has memory, pass it to
    /// [`XdpInterface::bind_socket`] or [`XdpInterface::bind_queue`].
    ///
    /// # Errors
    /// Returns an error if the kernel rejected the request.
    pub fn socket(&self) -> Result<OwnedFd, NetError> {
        self.in_its_namespace(|_| socket::create())
    }

    /// Binds a socket with memory, and directs the wire's packets to the socket.
    ///
    /// # Errors
    /// Returns the errors of [`XdpInterface::bind`].
    pub fn bind_socket(self: &Arc<Self>, socket: OwnedFd) -> Result<XdpDevice, NetError> {
        let socket = self.in_its_namespace(|index| {
            socket::bind(&socket, index, QUEUE, false)?;
            self.paths.redirect(QUEUE, &socket)?;
            XdpSocket::new(socket, self.spec.entries)
        })?;
        Ok(XdpDevice {
            socket,
            _wire: Arc::clone(self),
        })
    }

    /// Adopts a socket that another process has bound to this wire.
    ///
    /// # Errors
    /// Returns an error if the descriptor is not an AF_XDP socket.
    pub fn adopt_socket(self: &Arc<Self>, socket: OwnedFd) -> io::Result<XdpDevice> {
        Ok(XdpDevice {
            socket: XdpSocket::new(socket, self.spec.entries)?,
            _wire: Arc::clone(self),
        })
    }

    /// Creates a socket for a dedicated queue, with `umem` as its memory. It receives nothing yet.
    /// A queue has one socket at a time.
    ///
    /// # Errors
    /// Returns the errors of [`XdpInterface::bind_queue`].
    pub fn queue(&self, spec: &XdpQueue, umem: Span) -> Result<QueueSocket, NetError> {
        let socket = self.socket()?;
        let umem = Umem {
            span: umem,
            chunk_bytes: spec.chunk_bytes,
            entries: spec.entries,
            transmits: false,
        };
        umem::register(&socket, &umem).map_err(failed(&self.place(), BOUND_STEP, PRIVILEGES))?;
        self.bind_queue(spec, socket)
    }

    /// Binds a receive-only socket with memory to a dedicated queue. The queue receives nothing
    /// yet.
    ///
    /// # Errors
    /// Returns the errors of [`XdpInterface::bind`], or an error if the kernel rejects the program
    /// of the firewall rules.
    pub fn bind_queue(&self, spec: &XdpQueue, socket: OwnedFd) -> Result<QueueSocket, NetError> {
        // Bind first, because binding fails while the queue is busy, and takes less time than
        // compiling and verifying the program. Only copy mode is safe: an interface that writes to
        // the memory directly would do so until the socket is closed, and the memory belongs to
        // another domain.
        self.in_its_namespace(|index| socket::bind(&socket, index, spec.queue, true))?;
        let made = self.paths.queue(socket, spec);
        made.map_err(|error| {
            let place = self.place();
            NetError::Rules {
                queue: spec.queue,
                interface: place.ifname,
                namespace: namespace(place.netns.as_deref()),
                rules: spec.rules.len(),
                error,
            }
        })
    }

    /// Adopts a dedicated queue whose socket another process has bound, from the socket and that
    /// process's [kept](QueueSocket::adoption_fd) descriptor.
    ///
    /// # Errors
    /// Returns an error if the descriptors do not match.
    pub fn adopt_queue(
        &self,
        spec: &XdpQueue,
        socket: OwnedFd,
        kept: OwnedFd,
    ) -> io::Result<QueueSocket> {
        self.paths.adopt_queue((socket, kept), spec)
    }

    /// Returns the descriptors that another process needs to adopt the wire.
    #[must_use]
    pub fn adoption_fds(&self) -> Vec<BorrowedFd<'_>> {
        let own_fd = match (&self.promiscuous, &self.pair) {
            (Some(socket), _) => Some(socket.as_fd()),
            (None, Some(pair)) => Some(pair.near.as_fd()),
            (None, None) => None,
        };
        own_fd
            .into_iter()
            .chain(self.paths.adoption_fds())
            .collect()
    }

    /// Adopts the wire that another process has set up for `spec`, from the descriptors that
    /// [`XdpInterface::adoption_fds`] returned.
    ///
    /// # Errors
    /// Returns an error if the descriptors do not match `spec`.
    pub fn adopt(spec: &Xdp, kept: Vec<OwnedFd>) -> io::Result<Self> {
        let mut kept = kept.into_iter();
        let missing = || io::Error::from(io::ErrorKind::InvalidInput);
        let own_fd = kept.next().ok_or_else(missing)?;
        let paths = QueuePaths::adopt(kept.collect()).ok_or_else(missing)?;
        let (promiscuous, pair) = match spec.netdev {
            Netdev::Existing { .. } => (Some(own_fd), None),
            Netdev::Veth(_) => {
                let near = Namespace::from(own_fd);
                (None, Some(Pair { near }))
            }
        };
        Ok(Self {
            spec: spec.clone(),
            lacks: Vec::new(),
            paths: Arc::new(paths),
            promiscuous,
            pair,
        })
    }

    /// Runs `work` in the namespace of the interface, with the interface's number.
    fn in_its_namespace<T: Send>(
        &self,
        work: impl FnOnce(u32) -> io::Result<T> + Send,
    ) -> Result<T, NetError> {
        let on = |ifname: &str| work(Netlink::open()?.index(ifname)?);
        let made: io::Result<_> = match (&self.spec.netdev, &self.pair) {
            (Netdev::Existing { ifname, netns }, _) => {
                in_namespace(netns.as_deref(), || on(ifname))?
            }
            (Netdev::Veth(_), Some(pair)) => pair.near.enter(|| on(NEAR)).and_then(|made| made),
            (Netdev::Veth(_), None) => Err(io::ErrorKind::NotFound.into()),
        };
        made.map_err(failed(&self.place(), BOUND_STEP, PRIVILEGES))
    }

    /// Returns a specification that names the interface in messages.
    fn place(&self) -> TapSpec {
        match &self.spec.netdev {
            Netdev::Existing { ifname, netns } => place(ifname, netns),
            Netdev::Veth(far) => far.clone(),
        }
    }

    /// Returns whether the interface was removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.paths.is_removed()
    }

    /// Returns the features that this system lacks.
    #[must_use]
    pub fn lacks(&self) -> &[&'static str] {
        &self.lacks
    }
}

/// Returns a specification that names an existing interface in messages.
fn place(ifname: &str, netns: &Option<String>) -> TapSpec {
    TapSpec {
        ifname: ifname.to_owned(),
        netns: netns.clone(),
        ..TapSpec::default()
    }
}

impl XdpDevice {
    /// Returns the socket.
    #[must_use]
    pub fn socket(&self) -> &XdpSocket {
        &self.socket
    }

    /// Returns whether the kernel copies received frames, because the interface cannot write them
    /// to the socket's memory.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        let options = rustix::net::sockopt::xdp_options(self.socket.as_fd());
        options.is_ok_and(|options| options.is_empty())
    }

    /// Returns the pages of each ring to map into the domain's window.
    #[must_use]
    pub fn ring_pages(&self) -> [RingPages; 4] {
        Ring::ALL.map(|ring| self.socket.pages(ring))
    }
}

/// A veth pair, removed when this value is dropped.
#[derive(Debug)]
struct Pair {
    near: Namespace,
}

impl Pair {
    /// Creates a pair with one end in a new namespace, and the other end with the name, namespace
    /// and MTU of `far`; [`configure`] sets the rest. Frames that `far` sends use `queues` queues.
    fn new(far: &TapSpec, queues: u32) -> Result<Self, NetError> {
        let near = Namespace::new().map_err(failed(far, "given a namespace", PRIVILEGES))?;
        let path = match &far.netns {
            Some(name) => netns::path(name),
            None => netns::OWN.into(),
        };
        let far_netns = netns::open(&path).map_err(|error| NetError::Namespace {
            path: path.display().to_string(),
            error,
        })?;
        let made = near.enter(|| {
            let mut netlink = Netlink::open()?;
            netlink.add_veth(NEAR, &far.ifname, far_netns.as_fd(), queues)?;
            // The far end aggregates packets (GRO) only if segmentation is disabled on this end. An
            // AF_XDP socket never sends segments above the MTU.
            Ethtool::open(NEAR)?.switch_off(&TX_TSO_FEATURES)?;
            let index = netlink.index(NEAR)?;
            netlink.set_link(index, None, far.mtu, 0)
        });
        match made.and_then(|made| made) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                return Err(NetError::Exists {
                    interface: far.ifname.clone(),
                    namespace: namespace(far.netns.as_deref()),
                    error,
                });
            }
            made => made.map_err(failed(far, "created", PRIVILEGES))?,
        }
        let pair = Self { near };
        let whole = in_namespace(far.netns.as_deref(), || send_complete_frames(&far.ifname));
        let hint = "its checksums or VLAN tags cannot be switched off";
        whole?.map_err(failed(far, "configured to carry complete frames", hint))?;
        Ok(pair)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // The kernel would also remove the pair with its namespace, but later.
        let _ = self.near.enter(|| {
            let mut netlink = Netlink::open()?;
            let index = netlink.index(NEAR)?;
            netlink.delete_link(index)
        });
    }
}
