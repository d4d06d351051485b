//! One netfront and its endpoint.
//!
//! | own state | the backend is | what happens |
//! |---|---|---|
//! | Initialising | InitWait | memory is laid out and granted, the record is written: Initialised |
//! | Initialised | Connected | Connected: frames flow |
//! | Initialised, Connected | Closing, Closed, Unknown, another domain | grants are ended: Closed |
//! | Closed | InitWait, another domain, or Closed because it has refused | Initialising |
//!
//! Another domain: the driver domain has died and was started again, perhaps before this end has
//! looked.
//!
//! | module | what it is |
//! |---|---|
//! | [`build`] | from a configuration to interfaces |
//! | `connection` | the state of this end, and the next step of the hand-shake |
//! | `memory` | where its pages lie, and how they are granted |
//! | `link` | the netfront of the present connection |
//! | `device` | the endpoint |
//! | `to_guest` | from the ring through large receive offload to the endpoint |
//! | `from_guest` | from the endpoint to the ring |
//! | `fast_path` | both directions for small frames |
//! | [`pass`] | what one pass in one direction gets, and what came of it |
//! | `report` | its counters |

pub mod build;
mod connection;
mod device;
mod fast_path;
mod from_guest;
mod link;
mod memory;
pub mod pass;
mod report;
mod to_guest;

use abi::XenbusState;
use config::domain::Lro;
use connection::{Connection, Step};
use device::Device;
use from_guest::FromGuest;
use link::Link;
use memory::Memory;
use pass::Pass;
use runtime::platform::{NO_RECORD, Peer, Record};
use to_guest::ToGuest;
use vif::netfront::{Granter, Netfront};
use vif::netif::BackRecord;

/// One interface of the guest, or one queue of several that it has.
pub struct Interface {
    /// Its number; with several queues, those of interface and queue.
    name: String,
    connection: Connection,
    memory: Memory,
    link: Link,
    device: Device,
    to_guest: ToGuest,
    from_guest: FromGuest,
    /// Whether anything was done since the rings were last published.
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
    /// Goes as far through the hand-shake as the other end allows.
    pub fn advance(&mut self) {
        // Each pass makes one step; there are fewer steps than this.
        for _ in 0..8 {
            let before = self.connection.state;
            let Some(peer) = self.connection.peer() else {
                return;
            };
            // Also without a way back: what was granted to a backend that has gone is ended.
            let free = before == XenbusState::Closed && self.link.free_if_drained(&mut self.memory);
            match self.connection.next_step(&peer, free) {
                Step::Stay => {}
                Step::LayOut => match self.lay_out(&peer) {
                    Ok(record) => self.connection.set_state(XenbusState::Initialised, &record),
                    Err(trouble) => self.close(&trouble),
                },
                Step::Connect => {
                    self.connection.forget_refusals();
                    self.connection
                        .set_state(XenbusState::Connected, &NO_RECORD);
                }
                Step::CloseRefused => {
                    self.connection.count_refusal();
                    self.close("");
                }
                Step::Close(trouble) => self.close(trouble),
                Step::Restart => self
                    .connection
                    .set_state(XenbusState::Initialising, &NO_RECORD),
            }
            if self.connection.state == before {
                return;
            }
        }
    }

    /// Makes the netfront for `peer`; its record.
    fn lay_out(&mut self, peer: &Peer) -> Result<Record, String> {
        self.connection.meet(peer.domain);
        let back = BackRecord::decode(&peer.record).map_err(|error| error.to_string())?;
        self.connection.attach_doorbell()?;
        let conn = self.connection.conn;
        let (netfront, record) = self.memory.lay_out(conn, peer.domain, &back)?;
        self.link.set(netfront);
        self.connection.trouble.clear();
        Ok(record)
    }

    /// Connects it to a driver domain that offers `back`, without a hand-shake, its pages granted
    /// by `granter`, which cannot take them back; its record.
    ///
    /// # Errors
    /// Both ends do not fit, or the other one has no doorbell.
    pub fn join(&mut self, back: &BackRecord, granter: &mut dyn Granter) -> Result<Record, String> {
        let (netfront, record) = self.memory.lay_out_for_good(back, granter)?;
        self.connection.attach_doorbell()?;
        self.link.set(netfront);
        self.connection.state = XenbusState::Connected;
        Ok(record)
    }

    /// Takes the connection down. Grants that are still in use are ended when they no longer are.
    fn close(&mut self, trouble: &str) {
        if !trouble.is_empty() {
            trouble.clone_into(&mut self.connection.trouble);
            runtime::start::print_line(format_args!("interface {}: {trouble}", self.name));
        }
        let now_ns = shmem::time::monotonic_ns();
        self.to_guest.drain(now_ns, &mut self.device);
        if let Some(netfront) = self.link.netfront() {
            // Nothing of this pool may be used once there is another in its place.
            let pool = netfront.buffers();
            self.device.endpoint.release(pool);
            self.from_guest.recycle(pool);
        }
        self.link.close();
        self.link.free_if_drained(&mut self.memory);
        self.connection.set_state(XenbusState::Closed, &NO_RECORD);
    }

    /// Frames from the driver domain to the endpoint; whether there were any.
    pub fn to_guest(&mut self, pass: &mut Pass<'_>) -> bool {
        let Some(netfront) = self.link.open(self.connection.is_connected()) else {
            return false;
        };
        // Most looks find nothing: they are not worth a stamp.
        if !netfront.has_work() && !self.to_guest.lro.is_active() {
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

    /// Frames from the endpoint to the driver domain; whether any left.
    pub fn from_guest(&mut self, pass: &mut Pass<'_>) -> bool {
        let Some(netfront) = self.link.open(self.connection.is_connected()) else {
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

    /// Shows the driver domain what was done; whether there was anything.
    pub fn publish(&mut self) -> bool {
        let touched = std::mem::take(&mut self.touched);
        let Some(netfront) = self.link.netfront() else {
            return touched;
        };
        // Also without a frame: buffers of refused packets are posted again.
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

    /// The guest is about to sleep.
    pub fn arm(&mut self) {
        let starved = self.from_guest.starved;
        if let Some(netfront) = self.open() {
            netfront.arm(starved);
        }
    }

    /// The guest is awake.
    pub fn disarm(&mut self) {
        if let Some(netfront) = self.open() {
            netfront.disarm();
        }
    }

    /// Whether the driver domain has sent something, or has made the room that was waited for.
    pub fn has_work(&mut self) -> bool {
        let starved = self.from_guest.starved;
        self.open()
            .is_some_and(|netfront| netfront.has_work() || starved && netfront.has_room_to_reap())
    }

    /// The netfront, if frames flow.
    fn open(&mut self) -> Option<&mut Netfront> {
        self.link.open(self.connection.is_connected())
    }

    /// Whether the endpoint's descriptor is to be ignored: it has frames, and there is no room
    /// for them, or nowhere to send them.
    #[must_use]
    pub fn ignores_endpoint(&self) -> bool {
        self.from_guest.starved || !self.connection.is_connected()
    }

    /// When the interface wants to be looked at although nobody will ring.
    #[must_use]
    pub fn next_due(&self, now_ns: u64) -> Option<u64> {
        let endpoint = match self.ignores_endpoint() {
            true => None,
            false => self.device.endpoint.next_due(now_ns),
        };
        // Packets are held that might become part of a larger one.
        let held = self.to_guest.lro.next_due();
        endpoint.into_iter().chain(held).min()
    }

    /// Changes large receive offload.
    pub fn set_lro(&mut self, config: &Lro) {
        self.to_guest.set_lro(self.device.endpoint.caps(), config);
    }
}
