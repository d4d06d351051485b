//! How a frontend is notified: by the event channels that it has for a queue.
//!
//! A stock frontend grants no page for the words of an event channel (RING-11 to RING-13), so each
//! queue has one of this domain's own. The frontend's end of it always says that it sleeps: each
//! notification rings, and how many there are the rings' event indices decide alone, as Xen's
//! protocol has it.

use crate::dev::{Evtchn, Port};
use crate::netif::features::Ports;
use abi::PAGE;
use shmem::{Area, Span};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use vif::events::{Rings, WORD_STRIDE};

/// The word of an event channel that says that the frontend sleeps.
const FRONT_ARMED: usize = 3 * WORD_STRIDE;

/// How the frontend of one queue is notified.
#[derive(Debug)]
pub struct Bell {
    /// The words of the event channel.
    words: Span,
    channels: RefCell<Option<Channels>>,
}

impl Bell {
    /// Without a frontend.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            words: Area::anonymous(PAGE)?.span(),
            channels: RefCell::new(None),
        })
    }

    /// Domain `domain` has come; the words that its netback uses.
    ///
    /// # Errors
    /// The domain does not offer these ports.
    pub fn connect(&self, evtchn: &Rc<Evtchn>, domain: u16, ports: Ports) -> Result<Span, String> {
        self.words.fill(0).map_err(|_| "out of memory")?;
        let channels = Channels::bind(evtchn, domain, ports)?;
        self.channels.replace(Some(channels));
        Ok(self.words)
    }

    /// The frontend has gone.
    pub fn disconnect(&self) {
        self.channels.replace(None);
    }

    /// Notifies the frontend about `rings`.
    pub fn ring(&self, rings: Rings) {
        // Notifying took it away.
        let _ = self.words.store_u32(FRONT_ARMED, 1);
        match &*self.channels.borrow() {
            None => {}
            Some(Channels::Shared(port)) => port.notify(),
            Some(Channels::Split { tx, rx }) => {
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
enum Channels {
    Shared(Port),
    Split { tx: Port, rx: Port },
}

impl Channels {
    /// Binds to what domain `domain` offers.
    fn bind(evtchn: &Rc<Evtchn>, domain: u16, ports: Ports) -> Result<Self, String> {
        let bind = |port| {
            evtchn.bind(domain, port).map_err(|why| {
                format!("the event channel of domain {domain}, port {port}, cannot be bound: {why}")
            })
        };
        Ok(match ports {
            Ports::Shared(port) => Self::Shared(bind(port)?),
            Ports::Split { tx, rx } => Self::Split {
                tx: bind(tx)?,
                rx: bind(rx)?,
            },
        })
    }
}
