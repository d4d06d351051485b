//! A hostile frontend, with invalid rings and nodes.

use crate::pages::{Granted, Offered, PAGES};
use abi::PAGE;
use shmem::Span;
use std::time::{Duration, Instant};
use vif::netif::{RxRequest, TxRequest, TxResponse};
use vif::ring::{Format, GrantedRingPages};
use vif::testing::RawFront;
use xen::dev::ForeignWindow;
use xen::store::{Store, XenBus};

/// The interface's directory, which the toolstack has created.
const NODES: &str = "device/vif/0";
/// Deadline of every step of the driver. It allows for emulation on a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a valid packet.
const VALID_BYTES: u16 = 60;

/// States of the handshake.
pub(crate) const INITIALISING: &str = "1";
pub(crate) const INIT_WAIT: &str = "2";
pub(crate) const CONNECTED: &str = "4";
pub(crate) const CLOSED: &str = "6";

/// An error describes the failed step.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// Memory of one connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) tx: RawFront<3, 1>,
    pub(crate) rx: RawFront<2, 2>,
    pub(crate) channel: Offered,
    granted: Granted,
}

impl Link {
    /// Returns the grant of buffer `n`.
    pub(crate) fn gref(&self, n: usize) -> u32 {
        self.granted.grefs[2 + n % (PAGES - 2)]
    }

    /// Returns buffer `n`.
    pub(crate) fn buffer(&self, n: usize) -> Span {
        self.granted.page(2 + n % (PAGES - 2))
    }

    /// Returns page `n` of the connection.
    pub(crate) fn page(&self, n: usize) -> Span {
        self.granted.page(n)
    }

    pub(crate) fn page_gref(&self, n: usize) -> u32 {
        self.granted.grefs[n % PAGES]
    }

    /// Sends these requests, valid or not, and notifies the driver.
    pub(crate) fn send(&self, requests: &[[u32; 3]]) {
        self.tx.send(requests);
        self.channel.notify();
    }

    /// Waits for `count` answers starting at `from`, and returns them.
    pub(crate) fn answers(&self, from: u32, count: usize) -> Outcome<Vec<TxResponse>> {
        let come = || self.tx.rsp_prod().wrapping_sub(from) as usize;
        if !within(|| Ok(come() >= count))? {
            return Err(format!("{} of {count} requests were answered", come()));
        }
        let answers: Vec<_> = self.tx.responses(from);
        match answers.len() == count {
            true => Ok(answers.into_iter().map(TxResponse::decode).collect()),
            false => Err(format!("{} answers to {count} requests", answers.len())),
        }
    }

    /// Posts buffers for packets to the guest.
    pub(crate) fn post(&self, buffers: u16) {
        let buffer = |id: u16| RxRequest {
            id,
            offset: 0,
            gref: self.gref(id.into()),
        };
        let all: Vec<_> = (0..buffers).map(|id| buffer(id).encode()).collect();
        self.rx.send(&all);
        self.channel.notify();
    }

    /// Returns a part of a packet, in buffer 0.
    pub(crate) fn part(&self, id: u16, size: u16, flags: u16) -> TxRequest {
        TxRequest {
            gref: self.gref(0),
            offset: 0,
            flags,
            id,
            size,
        }
    }
}

/// The interface.
#[derive(Debug)]
pub(crate) struct Front {
    store: Store<XenBus>,
    backend: String,
    domain: u16,
    mac: [u8; 6],
    window: ForeignWindow,
}

impl Front {
    pub(crate) fn new() -> Outcome<Self> {
        let mut store = Store::new(XenBus::open().map_err(text)?);
        let mut node = |name: &str| -> Outcome<String> {
            let path = format!("{NODES}/{name}");
            let value = store.read(&path).map_err(text)?;
            value.ok_or_else(|| format!("{path} does not exist"))
        };
        let (backend, domain, mac) = (node("backend")?, node("backend-id")?, node("mac")?);
        let mac: config::MacAddress = mac.parse().map_err(|_| format!("{mac} is not a MAC"))?;
        Ok(Self {
            store,
            backend,
            domain: domain.parse().map_err(text)?,
            mac: mac.0,
            window: ForeignWindow::new(PAGES).map_err(text)?,
        })
    }

    /// Returns the driver's domain.
    pub(crate) fn domain(&self) -> u16 {
        self.domain
    }

    /// Sets nodes of this end.
    pub(crate) fn set(&mut self, nodes: &[(&str, String)]) -> Outcome {
        let there = self.store.write_all(NODES, nodes).map_err(text)?;
        there
            .then_some(())
            .ok_or("the interface has been removed".into())
    }

    pub(crate) fn set_state(&mut self, state: &str) -> Outcome {
        self.set(&[("state", state.to_owned())])
    }

    /// Waits until the driver's end is in this state.
    pub(crate) fn await_state(&mut self, wanted: &str) -> Outcome {
        let path = format!("{}/state", self.backend);
        let mut last = String::new();
        let come = within(|| {
            last = self.store.read(&path).map_err(text)?.unwrap_or_default();
            Ok(last.trim() == wanted)
        })?;
        match come {
            true => Ok(()),
            false => Err(format!("the driver is in state {last:?}, not {wanted}")),
        }
    }

    /// Disconnects and starts again; the driver then waits for nodes.
    pub(crate) fn begin(&mut self) -> Outcome {
        self.set_state(CLOSED)?;
        self.await_state(CLOSED)?;
        self.set_state(INITIALISING)?;
        self.await_state(INIT_WAIT)
    }

    /// Returns the memory of a connection, and the nodes that describe it, which the caller has yet
    /// to write.
    pub(crate) fn link(&self) -> Outcome<(Link, Vec<(&'static str, String)>)> {
        let granted = Granted::new(self.domain, self.window).map_err(text)?;
        let channel = Offered::new(self.domain).map_err(text)?;
        let pages = |n| GrantedRingPages::new(Format::Xen, &[granted.page(n)], Span::EMPTY);
        let (tx, rx) = (pages(0).map_err(text)?, pages(1).map_err(text)?);
        let link = Link {
            tx: RawFront::new(tx),
            rx: RawFront::new(rx),
            channel,
            granted,
        };
        link.tx.set_rsp_event(1);
        link.rx.set_rsp_event(1);
        link.granted.page(2).write(&self.frame()).map_err(text)?;
        let nodes = vec![
            ("tx-ring-ref", link.granted.grefs[0].to_string()),
            ("rx-ring-ref", link.granted.grefs[1].to_string()),
            ("event-channel", link.channel.port.to_string()),
            ("request-rx-copy", "1".to_owned()),
            ("feature-sg", "1".to_owned()),
            ("feature-gso-tcpv4", "1".to_owned()),
            ("state", CONNECTED.to_owned()),
        ];
        Ok((link, nodes))
    }

    /// Connects like a stock frontend.
    pub(crate) fn connect(&mut self) -> Outcome<Link> {
        self.begin()?;
        let (link, nodes) = self.link()?;
        self.set(&nodes)?;
        self.await_state(CONNECTED)?;
        Ok(link)
    }

    /// Sends a valid packet to check whether the driver serves this interface.
    pub(crate) fn is_served(&mut self) -> Outcome {
        let link = self.connect()?;
        link.send(&[link.part(7, VALID_BYTES, 0).encode()]);
        let answer = link.answers(0, 1)?;
        match answer.as_slice() {
            [TxResponse { id: 7, status: 0 }] => Ok(()),
            other => Err(format!("a good packet is answered with {other:?}")),
        }
    }

    /// Returns a broadcast of this guest with an experimental EtherType.
    fn frame(&self) -> [u8; PAGE] {
        let mut frame = [0; PAGE];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame
    }
}

/// Returns whether a condition becomes true before the deadline.
pub(crate) fn within(mut happens: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    let end = Instant::now() + STEP_TIMEOUT;
    while !happens()? {
        if Instant::now() > end {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
