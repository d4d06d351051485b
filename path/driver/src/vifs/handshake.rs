//! The hand-shake of a guest's port, and the end of its link.
//!
//! | own state | the frontend is | what happens |
//! |---|---|---|
//! | Initialising | anything | the backend's record is written: InitWait |
//! | InitWait | Initialised | the rings are mapped: Connected |
//! | Connected | Closing, Closed, Initialising, Unknown | everything is unmapped: Closed |
//! | Closed | Initialising | the backend's record is written again: InitWait |

use super::memory::{Opened, OpenedQueue};
use super::queues::{GuestNetback, GuestQueues};
use super::{Link, VifPort};
use abi::{GrantRef, XenbusState};
use runtime::platform::{Doorbell, NO_RECORD, Peer, Record};
use shmem::Span;
use vif::grants::Grants;
use vif::netback::Netback;
use vif::netif::{BackRecord, FrontRecord, Terms};

impl VifPort {
    /// Goes as far through the hand-shake as the other end allows.
    pub fn advance(&mut self) {
        // Each pass makes one step; there are fewer steps than this.
        for _ in 0..8 {
            let before = self.state;
            let peer = self.platform.peer(self.conn);
            let Ok(Some(peer)) = peer else { return };
            self.is_abandoned = peer.state == XenbusState::Unknown;
            // A dead guest does not come back: a queue over its memory ends, used or not.
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
                    Err(trouble) => self.close(&trouble),
                },
                // Initialising: it has closed and come back before we looked.
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

    /// What it offers the guest.
    #[must_use]
    pub fn record(&self) -> BackRecord {
        self.reach.record(self.queue.is_some())
    }

    fn set(&mut self, state: XenbusState, record: &Record) {
        match self.platform.set_state(self.conn, state, record) {
            Ok(()) => self.state = state,
            Err(error) => self.trouble = format!("{state:?} was refused: {error}"),
        }
    }

    /// Connects it to a guest without a hand-shake: the guest has `record`, `mechanism` gets
    /// at its pages, `page` finds those of the rings.
    ///
    /// # Errors
    /// What is wrong with the record.
    pub fn join(
        &mut self,
        record: &Record,
        mechanism: Box<dyn Grants>,
        page: impl FnMut(GrantRef) -> Option<Span>,
    ) -> Result<(), String> {
        let (front, terms) = self.agree(record)?;
        let pages: Option<Vec<_>> = front.references().map(page).collect();
        let pages = pages.ok_or("a ring's page is not there")?;
        let opened = Opened::new(mechanism, pages, Box::new(()));
        self.link(terms, &front, opened)?;
        self.doorbell = Some(self.attach_doorbell()?);
        self.state = XenbusState::Connected;
        Ok(())
    }

    fn attach_doorbell(&self) -> Result<Box<dyn Doorbell>, String> {
        let doorbell = self.platform.doorbell(self.conn);
        doorbell.map_err(|error| error.to_string())
    }

    /// The guest's record, and what it comes to with this end's.
    fn agree(&self, record: &Record) -> Result<(FrontRecord, Terms), String> {
        let front = FrontRecord::decode(record).map_err(|error| error.to_string())?;
        if front.mac != self.mac {
            return Err("the guest claims another MAC address than it was given".into());
        }
        let terms = Terms::of(&self.record(), &front).map_err(|error| error.to_string())?;
        Ok((front, terms))
    }

    fn connect(&mut self, peer: &Peer) -> Result<(), String> {
        let (front, terms) = self.agree(&peer.record)?;
        if self.frontend.replace(peer.domain) != Some(peer.domain) {
            // Another guest under the same number: the old doorbell was its predecessor's.
            self.doorbell = None;
        }
        if self.doorbell.is_none() {
            self.doorbell = Some(self.attach_doorbell()?);
        }
        let opened = self.reach.open(peer, &front, &self.ledger)?;
        self.link(terms, &front, opened)
    }

    fn link(&mut self, terms: Terms, front: &FrontRecord, opened: Opened) -> Result<(), String> {
        let Opened {
            first,
            others,
            groups,
            hashing,
            held,
        } = opened;
        let first = netback(terms, front, first)?;
        let others = others.into_iter().map(|queue| netback(terms, front, queue));
        let others = others.collect::<Result<_, _>>()?;
        let mut queues = GuestQueues::new(first, others, hashing);
        if let Some(groups) = groups {
            queues
                .iter_mut()
                .for_each(|queue| queue.offer_groups(groups));
        }
        self.link = Some(Link { queues, held });
        self.trouble.clear();
        Ok(())
    }

    /// The guest is taken away: the link is ended, and what the guest has granted is let go of.
    ///
    /// # Errors
    /// The other end could not be told; nothing of the guest is in use all the same.
    pub fn leave(&mut self) -> Result<(), String> {
        if self.state != XenbusState::Closed {
            self.close("");
        }
        match self.state {
            XenbusState::Closed => Ok(()),
            _ => Err(self.trouble.clone()),
        }
    }

    /// Takes the link down, whatever state it is in.
    pub(super) fn close(&mut self, trouble: &str) {
        if let Some(link) = self.link.take() {
            // First of all: its pages are to be the guest's.
            if let Some(queue) = &mut self.queue {
                queue.end();
            }
            self.past += link.queues.counters();
            link.queues.end();
            drop(link.held);
        }
        if !trouble.is_empty() {
            trouble.clone_into(&mut self.trouble);
            runtime::start::print_line(format_args!("{}: {trouble}", self.name));
        }
        self.set(XenbusState::Closed, &NO_RECORD);
    }
}

/// The netback of one queue, over rings that are as the guest's record says of the first one.
fn netback(terms: Terms, front: &FrontRecord, queue: OpenedQueue) -> Result<GuestNetback, String> {
    if queue.pages.len() != front.references().count() {
        return Err("not every page of the rings is there".into());
    }
    let (tx, rest) = queue.pages.split_at(front.tx_ring.len());
    let (rx, event) = rest.split_at(front.rx_ring.len());
    let event = event.first().copied().unwrap_or(Span::EMPTY);
    let netback = Netback::new(terms, tx, rx, event, queue.mechanism.0);
    let mut netback = netback.map_err(|error| error.to_string())?;
    if let Some(journals) = queue.journals {
        netback.resume(journals);
    }
    Ok(netback)
}

#[cfg(test)]
mod tests;
