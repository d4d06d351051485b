//! Doorbells of a frontend: the event channels of its queues.
//!
//! A stock frontend grants no page for the words of an event channel (RING-11 to RING-13), so each
//! queue has a page of this domain. The frontend's word always states that the frontend sleeps. So
//! every notification rings, and only the rings' event indices limit their number, as in Xen's
//! protocol.

use crate::dev::{Evtchn, EvtchnPort};
use crate::netif::features::EventPorts;
use abi::PAGE;
use shmem::{Area, Span};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use vif::events::{NotifiedRings, WORD_STRIDE};

/// Offset of the word of an event channel that the frontend sets before it sleeps.
const FRONT_ARMED: usize = 3 * WORD_STRIDE;

/// The doorbell of one queue of a frontend.
#[derive(Debug)]
pub struct ChannelNotifier {
    /// The words of the event channel.
    words: Span,
    channels: RefCell<Option<EventChannels>>,
}

impl ChannelNotifier {
    /// Returns a doorbell without a frontend.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is exhausted.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            words: Area::anonymous(PAGE)?.span(),
            channels: RefCell::new(None),
        })
    }

    /// Connects domain `domain`; returns the words that its netback uses.
    ///
    /// # Errors
    ///
    /// Returns an error if the domain does not offer these ports.
    pub fn connect(
        &self,
        evtchn: &Rc<Evtchn>,
        domain: u16,
        ports: EventPorts,
    ) -> Result<Span, String> {
        self.words.fill(0).map_err(|_| "out of memory")?;
        let channels = EventChannels::bind(evtchn, domain, ports)?;
        self.channels.replace(Some(channels));
        Ok(self.words)
    }

    /// Disconnects the frontend.
    pub fn disconnect(&self) {
        self.channels.replace(None);
    }

    /// Notifies the frontend about `rings`.
    pub fn ring(&self, rings: NotifiedRings) {
        // Set the word again, because the notification has cleared it.
        let _ = self.words.store_u32(FRONT_ARMED, 1);
        match &*self.channels.borrow() {
            None => {}
            Some(EventChannels::Shared(port)) => port.notify(),
            Some(EventChannels::Split { tx, rx }) => {
                if rings.tx {
                    tx.notify();
                }
                if rings.rx {
                    rx.notify();
                }
            }
        }
    }
}

/// This end of a frontend's event channels.
#[derive(Debug)]
enum EventChannels {
    Shared(EvtchnPort),
    Split { tx: EvtchnPort, rx: EvtchnPort },
}

impl EventChannels {
    /// Binds to the ports that domain `domain` offers.
    fn bind(evtchn: &Rc<Evtchn>, domain: u16, ports: EventPorts) -> Result<Self, String> {
        let bind = |port| {
            evtchn.bind(domain, port).map_err(|why| {
                format!("the event channel of domain {domain}, port {port}, cannot be bound: {why}")
            })
        };
        Ok(match ports {
            EventPorts::Shared(port) => Self::Shared(bind(port)?),
            EventPorts::Split { tx, rx } => Self::Split {
                tx: bind(tx)?,
                rx: bind(rx)?,
            },
        })
    }
}
