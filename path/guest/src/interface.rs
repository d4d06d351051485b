//! One netfront and its endpoint.
//!
//! [`runtime::frontend`] has the states of its connection.
//!
//! | module | contents |
//! |---|---|
//! | [`build`] | creates interfaces from a configuration |
//! | `memory` | layout of the interface's pages, and their grants |
//! | `link` | the netfront of the current connection |
//! | `device` | the endpoint |
//! | `to_guest` | from the ring through large receive offload to the endpoint |
//! | `from_guest` | from the endpoint to the ring |
//! | `fast_path` | both directions for small frames |
//! | [`pass`] | input and result of one pass in one direction |
//! | `report` | counters of the interface |

pub mod build;
mod device;
mod fast_path;
mod from_guest;
mod link;
mod memory;
pub mod pass;
mod report;
mod to_guest;

use abi::XenbusState;
use config::domain::LroConfig;
use device::EndpointDevice;
use from_guest::TxBacklog;
use link::NetfrontLink;
use memory::InterfaceMemory;
use pass::PassInput;
use runtime::frontend::{FrontendConnection, HandshakeStep};
use runtime::platform::{ConnectRecord, NO_RECORD, PeerEnd};
use to_guest::RxPath;
use vif::netfront::{Granter, Netfront};
use vif::netif::BackRecord;

/// One interface of the guest, or one of its queues.
pub struct Interface {
    /// The interface's number, or with several queues the numbers of interface and queue.
    name: String,
    connection: FrontendConnection,
    memory: InterfaceMemory,
    link: NetfrontLink,
    device: EndpointDevice,
    to_guest: RxPath,
    from_guest: TxBacklog,
    /// Whether the rings have changed since they were last published.
    touched: bool,
}

impl std::fmt::Debug for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interface")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Interface {
    /// Advances the handshake as far as the other end allows.
    pub fn advance(&mut self) {
        // Each pass makes one step. The number of passes exceeds the number of steps.
        for _ in 0..8 {
            let before = self.connection.state;
            let Some(peer) = self.connection.peer() else {
                return;
            };
            // This is also needed after a final close, to end grants to a backend that has exited.
            let free = before == XenbusState::Closed && self.link.free_if_drained(&mut self.memory);
            match self.connection.next_step(&peer, free) {
                HandshakeStep::Wait => {}
                HandshakeStep::Initialize => match self.lay_out(&peer) {
                    Ok(record) => self.connection.set_state(XenbusState::Initialised, &record),
                    Err(error) => self.close(&error),
                },
                HandshakeStep::Connect => {
                    self.connection.reset_refusals();
                    self.connection
                        .set_state(XenbusState::Connected, &NO_RECORD);
                }
                HandshakeStep::CloseRefused => {
                    self.connection.count_refusal();
                    self.close("");
                }
                HandshakeStep::Close(error) => self.close(error),
                HandshakeStep::Restart => self
                    .connection
                    .set_state(XenbusState::Initialising, &NO_RECORD),
            }
            if self.connection.state == before {
                return;
            }
        }
    }

    /// Creates the netfront for `peer`; returns its record.
    fn lay_out(&mut self, peer: &PeerEnd) -> Result<ConnectRecord, String> {
        self.connection.set_backend(peer.domain);
        let back = BackRecord::decode(&peer.record).map_err(|error| error.to_string())?;
        self.connection.attach_doorbell()?;
        let conn = self.connection.conn;
        let (netfront, record) = self.memory.lay_out(conn, peer.domain, &back)?;
        self.link.set(netfront);
        self.connection.last_error.clear();
        Ok(record)
    }

    /// Connects to a driver domain with record `back`, without a handshake. `granter` grants the
    /// pages and cannot revoke them. Returns the front's record.
    ///
    /// # Errors
    /// Returns an error if the two ends do not match, or the other one has no doorbell.
    pub fn join(
        &mut self,
        back: &BackRecord,
        granter: &mut dyn Granter,
    ) -> Result<ConnectRecord, String> {
        let (netfront, record) = self.memory.lay_out_fixed(back, granter)?;
        self.connection.attach_doorbell()?;
        self.link.set(netfront);
        self.connection.state = XenbusState::Connected;
        Ok(record)
    }

    /// Closes the connection. Grants still in use are ended later.
    fn close(&mut self, error: &str) {
        if !error.is_empty() {
            error.clone_into(&mut self.connection.last_error);
            runtime::start::print_line(format_args!("interface {}: {error}", self.name));
        }
        let now_ns = shmem::time::monotonic_ns();
        self.to_guest.drain(now_ns, &mut self.device);
        if let Some(netfront) = self.link.netfront() {
            // Buffers of this pool must not be used once another pool replaces it.
            let pool = netfront.buffers();
            self.device.endpoint.release(pool);
            self.from_guest.recycle(pool);
        }
        self.link.close();
        self.link.free_if_drained(&mut self.memory);
        self.connection.set_state(XenbusState::Closed, &NO_RECORD);
    }

    /// Serves requests of the endpoint's peer, even without a driver domain; returns whether there
    /// were any.
    pub fn serve(&mut self, now_ns: u64) -> bool {
        let is_notified = self.device.is_notified;
        let is_up = self.connection.is_connected();
        let notified = is_notified.then(|| self.device.endpoint.notified());
        notified.flatten().is_some_and(|device| {
            device.set_link(is_up, now_ns);
            device.serve(now_ns)
        })
    }

    /// Moves frames from the driver domain to the endpoint; returns whether it moved any.
    pub fn to_guest(&mut self, pass: &mut PassInput<'_>) -> bool {
        let Some(netfront) = self.link.connected_netfront(self.connection.is_connected()) else {
            return false;
        };
        // Most polls find nothing and do not justify a time stamp.
        let is_idle = !self.to_guest.lro.is_active() && !self.to_guest.is_waiting();
        if is_idle && !netfront.has_work() {
            return false;
        }
        let (device, memory) = (&mut self.device, &mut self.memory);
        let outcome = self.to_guest.run(netfront, device, memory, pass);
        self.touched |= outcome.touched;
        if let Some(fatal) = outcome.fatal {
            self.close(&fatal.to_string());
        }
        outcome.moved
    }

    /// Moves frames from the endpoint to the driver domain; returns whether any were sent.
    pub fn from_guest(&mut self, pass: &mut PassInput<'_>) -> bool {
        let Some(netfront) = self.link.connected_netfront(self.connection.is_connected()) else {
            return false;
        };
        let behind = (&mut self.device, &mut self.memory);
        let outcome = self.from_guest.run(netfront, behind, pass);
        self.touched |= outcome.touched;
        if let Some(fatal) = outcome.fatal {
            self.close(&fatal.to_string());
        }
        outcome.moved
    }

    /// Publishes ring changes to the driver domain; returns whether it published any.
    pub fn publish(&mut self) -> bool {
        let touched = std::mem::take(&mut self.touched);
        let Some(netfront) = self.link.netfront() else {
            return touched;
        };
        // The ring is published even without a frame, because buffers of rejected packets are
        // posted again.
        if !touched && !netfront.is_dirty() {
            return false;
        }
        netfront.publish();
        true
    }

    /// Wakes the driver domain if it sleeps and something was published.
    pub fn notify(&mut self) {
        if self.link.netfront().is_some_and(Netfront::notify) {
            self.connection.ring();
        }
    }

    /// Requests notifications: the guest is about to sleep.
    pub fn arm(&mut self) {
        let starved = self.from_guest.starved;
        if let Some(netfront) = self.open() {
            netfront.arm(starved);
        }
        if let Some(device) = self.device.endpoint.notified() {
            device.arm();
        }
    }

    /// Disables notifications: the guest is awake.
    pub fn disarm(&mut self) {
        if let Some(netfront) = self.open() {
            netfront.disarm();
        }
        if let Some(device) = self.device.endpoint.notified() {
            device.disarm();
        }
    }

    /// Returns whether the driver domain has sent something or freed the requested room, or the
    /// endpoint's peer has sent something that can be forwarded.
    pub fn has_work(&mut self) -> bool {
        let starved = self.from_guest.starved;
        // While frames wait for room in the endpoint, those in the ring must wait, too.
        let waiting = self.to_guest.is_waiting();
        let Some(netfront) = self.open() else {
            return false;
        };
        if !waiting && netfront.has_work() || starved && netfront.has_unreaped_responses() {
            return true;
        }
        let device = self
            .device
            .endpoint
            .notified()
            .filter(|_| !starved || waiting);
        device.is_some_and(|device| device.has_work())
    }

    /// Returns the netfront, if connected.
    fn open(&mut self) -> Option<&mut Netfront> {
        self.link.connected_netfront(self.connection.is_connected())
    }

    /// Returns whether to ignore the endpoint's descriptor, because its frames must wait for room
    /// or for a connection. The guest never ignores the edge-triggered descriptors of a device with
    /// notifications.
    #[must_use]
    pub fn ignores_endpoint(&self) -> bool {
        !self.device.is_notified && self.is_blocked()
    }

    /// Returns whether the endpoint's frames must wait for room or for a connection.
    fn is_blocked(&self) -> bool {
        self.from_guest.starved || !self.connection.is_connected()
    }

    /// Returns the time at which the interface is due even without a doorbell.
    #[must_use]
    pub fn next_due(&self, now_ns: u64) -> Option<u64> {
        // A notified device has a timer, so its frames need not wake the guest.
        let endpoint = match self.is_blocked() && !self.device.is_notified {
            true => None,
            false => self.device.endpoint.next_due(now_ns),
        };
        // Packets that LRO holds also have a due time.
        let held = self.to_guest.lro.next_due();
        endpoint.into_iter().chain(held).min()
    }

    /// Changes the settings of large receive offload.
    pub fn set_lro(&mut self, config: &LroConfig) {
        self.to_guest.set_lro(self.device.endpoint.caps(), config);
    }
}
