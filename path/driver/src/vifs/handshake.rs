//! The handshake of a guest's port: creates and closes the link.
//!
//! | state of this end | state of the frontend | action and new state |
//! |---|---|---|
//! | Initialising | any | write the backend's record: InitWait |
//! | InitWait | Initialised | map the rings: Connected |
//! | Connected | Closing, Closed, Initialising, Unknown | unmap everything: Closed |
//! | Closed | Initialising | write the backend's record again: InitWait |

use super::memory::{OpenedMemory, OpenedQueue};
use super::queues::{GuestNetback, GuestQueues};
use super::{ConnectedVif, VifPort};
use abi::{GrantRef, XenbusState};
use runtime::platform::{ConnectRecord, Doorbell, NO_RECORD, PeerEnd};
use shmem::Span;
use vif::grants::GrantMechanism;
use vif::netback::Netback;
use vif::netif::{BackRecord, FrontRecord, Negotiated};

impl VifPort {
    /// Advances the handshake as far as the state of the other end allows.
    pub fn advance(&mut self) {
        // Each pass performs one step; a handshake has fewer steps than this loop has passes.
        for _ in 0..8 {
            let before = self.state;
            let peer = self.platform.peer(self.conn);
            let Ok(Some(peer)) = peer else { return };
            self.is_abandoned = peer.state == XenbusState::Unknown;
            // A dead guest does not reconnect, so its dedicated queue ends even if it is not in
            // use.
            if self.is_abandoned
                && let Some(queue) = &mut self.queue
            {
                queue.end();
            }
            use XenbusState as S;
            match (self.state, peer.state) {
                (S::Initialising, _) | (S::Closed, S::Initialising) => {
                    let body = self.record().encode();
                    self.set(S::InitWait, &body);
                }
                (S::InitWait, S::Initialised) => match self.connect(&peer) {
                    Ok(()) => {
                        let body = self.record().encode();
                        self.set(S::Connected, &body);
                    }
                    Err(error) => self.close(&error),
                },
                // The state Initialising means that the guest has closed and restarted the
                // handshake since the last check.
                (S::Connected, S::Closing | S::Closed | S::Initialising)
                | (S::InitWait, S::Closing | S::Closed) => self.close(""),
                (S::Connected, S::Unknown) => self.close("the guest has died"),
                _ => {}
            }
            if self.state == before {
                return;
            }
        }
    }

    /// Returns the record with which this end offers its features to the guest.
    #[must_use]
    pub fn record(&self) -> BackRecord {
        self.access.record(self.queue.is_some())
    }

    fn set(&mut self, state: XenbusState, record: &ConnectRecord) {
        match self.platform.set_state(self.conn, state, record) {
            Ok(()) => self.state = state,
            Err(error) => self.last_error = format!("the monitor rejects state {state:?}: {error}"),
        }
    }

    /// Connects to a guest without a handshake. `record` is the guest's record, `mechanism`
    /// accesses the guest's pages, and `page` returns the pages of the rings.
    ///
    /// # Errors
    /// Returns the reason as text if the record is invalid.
    pub fn join(
        &mut self,
        record: &ConnectRecord,
        mechanism: Box<dyn GrantMechanism>,
        page: impl FnMut(GrantRef) -> Option<Span>,
    ) -> Result<(), String> {
        let (front, negotiated) = self.negotiate(record)?;
        let pages: Option<Vec<_>> = front.references().map(page).collect();
        let pages = pages.ok_or("a page of a ring is inaccessible")?;
        let opened = OpenedMemory::new(mechanism, pages, Box::new(()));
        self.link(negotiated, &front, opened)?;
        self.doorbell = Some(self.attach_doorbell()?);
        self.state = XenbusState::Connected;
        Ok(())
    }

    fn attach_doorbell(&self) -> Result<Box<dyn Doorbell>, String> {
        let doorbell = self.platform.doorbell(self.conn);
        doorbell.map_err(|error| error.to_string())
    }

    /// Returns the guest's record, and the features negotiated with it.
    fn negotiate(&self, record: &ConnectRecord) -> Result<(FrontRecord, Negotiated), String> {
        let front = FrontRecord::decode(record).map_err(|error| error.to_string())?;
        if front.mac != self.mac {
            return Err("the guest claims another MAC address than the one assigned to it".into());
        }
        let negotiated =
            Negotiated::of(&self.record(), &front).map_err(|error| error.to_string())?;
        Ok((front, negotiated))
    }

    fn connect(&mut self, peer: &PeerEnd) -> Result<(), String> {
        let (front, negotiated) = self.negotiate(&peer.record)?;
        if self.frontend.replace(peer.domain) != Some(peer.domain) {
            // The connection now belongs to another guest, but the doorbell still belongs to the
            // previous guest.
            self.doorbell = None;
        }
        if self.doorbell.is_none() {
            self.doorbell = Some(self.attach_doorbell()?);
        }
        let opened = self.access.open(peer, &front, &self.ledger)?;
        self.link(negotiated, &front, opened)
    }

    fn link(
        &mut self,
        negotiated: Negotiated,
        front: &FrontRecord,
        opened: OpenedMemory,
    ) -> Result<(), String> {
        let OpenedMemory {
            first,
            others,
            groups,
            hashing,
            held,
        } = opened;
        let first = netback(negotiated, front, first)?;
        let others = others
            .into_iter()
            .map(|queue| netback(negotiated, front, queue));
        let others = others.collect::<Result<_, _>>()?;
        let mut queues = GuestQueues::new(first, others, hashing);
        if let Some(groups) = groups {
            queues
                .iter_mut()
                .for_each(|queue| queue.offer_multicast_filter(groups));
        }
        self.link = Some(ConnectedVif { queues, held });
        self.links += 1;
        if let Some(queue) = &mut self.queue {
            queue.connected(front.table);
        }
        self.last_error.clear();
        Ok(())
    }

    /// Disconnects the guest permanently: closes the link and releases all of the guest's grants.
    ///
    /// # Errors
    /// Returns an error if the other end could not be notified. The guest's memory is released
    /// nevertheless.
    pub fn disconnect(&mut self) -> Result<(), String> {
        if self.state != XenbusState::Closed {
            self.close("");
        }
        match self.state {
            XenbusState::Closed => Ok(()),
            _ => Err(self.last_error.clone()),
        }
    }

    /// Closes the link, in any state, and logs `error` unless it is empty.
    pub(super) fn close(&mut self, error: &str) {
        if let Some(link) = self.link.take() {
            // The dedicated queue ends first, because its pages must return to the guest.
            if let Some(queue) = &mut self.queue {
                queue.end();
            }
            self.past += link.queues.counters();
            link.queues.end();
            drop(link.held);
        }
        if !error.is_empty() {
            error.clone_into(&mut self.last_error);
            runtime::start::print_line(format_args!("{}: {error}", self.name));
        }
        self.set(XenbusState::Closed, &NO_RECORD);
    }
}

/// Creates the netback of one queue. The record's parameters of the first queue apply to all
/// queues.
fn netback(
    negotiated: Negotiated,
    front: &FrontRecord,
    queue: OpenedQueue,
) -> Result<GuestNetback, String> {
    if queue.pages.len() != front.references().count() {
        return Err("a page of the rings is missing".into());
    }
    let (tx, rest) = queue.pages.split_at(front.tx_ring.len());
    let (rx, event) = rest.split_at(front.rx_ring.len());
    let event = event.first().copied().unwrap_or(Span::EMPTY);
    let netback = Netback::new(negotiated, tx, rx, event, queue.mechanism);
    let mut netback = netback.map_err(|error| error.to_string())?;
    if let Some(journals) = queue.journals {
        netback.resume(journals);
    }
    Ok(netback)
}

#[cfg(test)]
mod tests;
