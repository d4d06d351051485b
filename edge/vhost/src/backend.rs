//! The back end of one virtual machine: accepts connections, and serves one at a time.

use crate::ProtocolError;
use crate::connection::VmmConnection;
use crate::features::Offer;
use crate::link::VmLink;
use crate::queue::RingError;
use crate::socket;
use crate::system::VhostSystem;
use net::packet::Mac;
use net::packet::announce::reverse_request;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::os::fd::{AsFd, OwnedFd};

/// Nanoseconds between two reads of the sockets while the shim is awake. Each read is a system
/// call, and a front end tolerates this delay, because its other steps also take milliseconds.
const READ_NS: u64 = 1_000_000;
/// Maximum number of connections that one call accepts.
const ACCEPTS_MAX: usize = 16;
/// Message that requests a connection from the manager.
const CONNECTION_REQUEST: &[u8] = b"C";

/// Source of connections.
#[derive(Debug)]
pub enum ConnectionSource {
    /// A listening socket, to which the front end connects.
    Listener(OwnedFd),
    /// One end of a pair of `SOCK_SEQPACKET` sockets. The manager connects to the front end, and
    /// sends each connection as a descriptor with a message of one byte. The shim requests a
    /// connection by sending the byte `C`.
    Manager(OwnedFd),
}

impl AsFd for ConnectionSource {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Listener(fd) | Self::Manager(fd) => fd.as_fd(),
        }
    }
}

impl ConnectionSource {
    /// Returns the next connection, if any.
    fn next(&self) -> Result<Option<OwnedFd>, Errno> {
        match self {
            Self::Listener(fd) => {
                match accept_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    Ok(connection) => Ok(Some(connection)),
                    Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
                    Err(error) => Err(error),
                }
            }
            Self::Manager(fd) => {
                let mut fds = Vec::new();
                match socket::read(fd.as_fd(), &mut [0; 1], &mut fds) {
                    Ok(_) => Ok(fds.pop()),
                    Err(Errno::AGAIN | Errno::INTR) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

/// The server of one virtual machine. It has at most one connection at a time: a second front end
/// is refused, and does not affect the first one.
#[derive(Debug)]
pub struct VhostBackend<S> {
    system: S,
    source: ConnectionSource,
    offer: Offer,
    pub(crate) connection: Option<VmmConnection>,
    link: VmLink,
    /// Number of queue pairs in use that was last printed on the console.
    printed_pairs: u16,
    /// Whether a connection was requested from the manager.
    has_requested: bool,
    /// Time at which the sockets were last read; 0: the next call reads them.
    read_ns: u64,
    /// Whether frames have passed since the shim last woke.
    pub(crate) moved: bool,
    /// Prints a line on the shim's console.
    print: fn(std::fmt::Arguments<'_>),
    pub(crate) counters: BackendCounters,
}

/// Counters of all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackendCounters {
    pub(crate) connections: u64,
    pub(crate) refused: u64,
    pub(crate) broken_rings: u64,
}

impl<S: VhostSystem> VhostBackend<S> {
    /// Returns a back end without a connection; `print` prints a line on the shim's console.
    #[must_use]
    pub fn new(
        system: S,
        source: ConnectionSource,
        offer: Offer,
        print: fn(std::fmt::Arguments<'_>),
    ) -> Self {
        Self {
            system,
            source,
            offer,
            connection: None,
            link: VmLink::default(),
            printed_pairs: 0,
            has_requested: false,
            read_ns: 0,
            moved: false,
            print,
            counters: BackendCounters::default(),
        }
    }

    /// Returns the system.
    pub fn system(&mut self) -> &mut S {
        &mut self.system
    }

    /// Returns the offer to the virtual machine.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Records whether the interface has a driver domain, and sets the virtual machine's link
    /// accordingly.
    pub(crate) fn set_link(&mut self, is_connected: bool, now_ns: u64) {
        if !self.link.set(is_connected, now_ns) {
            return;
        }
        let is_up = self.link.is_up();
        if let Some(connection) = &mut self.connection {
            connection.set_link(is_up);
        }
        let state = if is_up { "up" } else { "down" };
        (self.print)(format_args!("vhost-user: link {state}"));
    }

    /// Returns the time at which the link changes unless another event precedes it.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.link.due_ns()
    }

    /// Returns the state of the connection and the driver as named values.
    pub(crate) fn state(&self) -> [(&'static str, u64); 5] {
        let connection = self.connection.as_ref();
        let features = connection.map_or(0, |connection| connection.features.0);
        let pairs = connection.map_or(0, VmmConnection::pairs_in_use);
        [
            ("vm_connected", u64::from(connection.is_some())),
            ("vm_link_up", u64::from(self.link.is_up())),
            ("vm_features", features),
            ("vm_mtu", self.offer.mtu.into()),
            ("vm_queue_pairs", pairs.into()),
        ]
    }

    /// Returns the frame that announces the virtual machine's MAC, while one is due.
    pub(crate) fn announcement(&self) -> Option<Vec<u8>> {
        let connection = self.connection.as_ref()?;
        let mac = Mac(self.offer.mac);
        connection.announces.then(|| reverse_request(mac))
    }

    /// Records that the announcement was sent.
    pub(crate) fn record_announcement(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.announces = false;
        }
    }

    /// Prints when the driver begins to receive, and when it uses more or fewer pairs.
    fn print_pairs(&mut self) {
        let connection = self.connection.as_mut();
        let pairs = connection.map_or(0, |connection| {
            let pairs = connection.pairs_in_use();
            connection.runs(pairs);
            pairs
        });
        if std::mem::replace(&mut self.printed_pairs, pairs) == pairs {
            return;
        }
        let Some(connection) = self.connection.as_ref().filter(|_| pairs > 0) else {
            return;
        };
        (self.print)(format_args!(
            "vhost-user: the driver uses {pairs} of {} queue pairs, features {:#x}, MTU {}",
            self.offer.queue_pairs, connection.features.0, self.offer.mtu
        ));
    }

    /// Makes the next call of [`VhostBackend::serve`] read the sockets.
    fn read_soon(&mut self) {
        self.read_ns = 0;
    }

    /// Records that the shim has woken. If frames have passed, they have probably woken the shim;
    /// otherwise the next turn reads the sockets. If a socket was the cause, its unread data wakes
    /// the shim again immediately.
    pub(crate) fn record_wake(&mut self) {
        if !std::mem::take(&mut self.moved) {
            self.read_soon();
        }
    }

    /// Answers requests and accepts connections. Returns whether it found any.
    pub fn serve(&mut self, now_ns: u64) -> bool {
        if self.read_ns != 0 && now_ns.saturating_sub(self.read_ns) < READ_NS {
            return false;
        }
        self.read_ns = now_ns.max(1);
        let mut served = false;
        if let Some(connection) = &mut self.connection {
            match connection.serve(&mut self.system) {
                Ok(any) => served |= any,
                Err(refusal) => {
                    self.end(&refusal);
                    served = true;
                }
            }
        }
        served |= self.serve_control();
        self.print_pairs();
        self.accept() || served
    }

    /// Executes the driver's commands from the control queue. Returns whether it found any.
    fn serve_control(&mut self) -> bool {
        let connection = self.connection.as_mut();
        match connection.map(VmmConnection::serve_control) {
            Some(Err((ring, broken))) => {
                self.fail(ring, broken);
                true
            }
            Some(Ok(any)) => any,
            None => false,
        }
    }

    /// Accepts connections: serves the first one and refuses others.
    fn accept(&mut self) -> bool {
        let mut accepted = false;
        if let (None, false, ConnectionSource::Manager(manager)) =
            (&self.connection, self.has_requested, &self.source)
        {
            // If the queue is full, it still holds an unread request.
            let _ = rustix::io::write(manager, CONNECTION_REQUEST);
            self.has_requested = true;
        }
        for _ in 0..ACCEPTS_MAX {
            let Ok(Some(socket)) = self.source.next() else {
                break;
            };
            accepted = true;
            if self.connection.is_some() {
                self.counters.refused += 1;
                continue;
            }
            match self.open(socket) {
                Ok(connection) => {
                    self.counters.connections += 1;
                    self.connection = Some(connection);
                    self.read_soon();
                }
                Err(refusal) => {
                    (self.print)(format_args!("vhost-user: {refusal}"));
                    // netd sends one connection for each request, and this one is lost.
                    self.has_requested = false;
                    self.read_soon();
                }
            }
        }
        accepted
    }

    fn open(&mut self, socket: OwnedFd) -> Result<VmmConnection, ProtocolError> {
        let connection = VmmConnection::new(socket, self.offer, self.link.is_up())?;
        self.system
            .watch(connection.fd(), false)
            .map_err(ProtocolError::Socket)?;
        Ok(connection)
    }

    /// Ends the connection. The shim accepts a pending connection in the same turn.
    fn end(&mut self, refusal: &ProtocolError) {
        if let Some(connection) = self.connection.take() {
            connection.close(&mut self.system);
            (self.print)(format_args!("vhost-user: connection ended: {refusal}"));
        }
        self.has_requested = false;
    }

    /// Stops a ring that is broken.
    pub(crate) fn fail(&mut self, ring: usize, broken: RingError) {
        self.counters.broken_rings += 1;
        let Some(connection) = &mut self.connection else {
            return;
        };
        if let Some(vring) = connection.vrings.get_mut(ring) {
            vring.fail(broken);
            (self.print)(format_args!("vhost-user: ring {ring} stopped: {broken}"));
        }
    }
}
