//! A station: its addresses, its programs, and its turn.

use crate::FRAME_MAX;
use crate::app::{App, Context, FIRST_PORT};
use crate::file::{FileStream, SentFiles};
use crate::link::{FrameSink, Outgoing, StackDevice};
use crate::ping::Ping;
use crate::rx_queue::RxQueue;
use crate::tx_buffers::NoBuffers;
use crate::{client, server};
use config::domain::{StackApp, StackConfig};
use nic::{Buffers, Caps, Frame, Nic, TxReport};
use serde_json::{Map, Value, json};
use shmem::{Area, Fault};
use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketSet};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv6Address};
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

/// Maximum number of frames that are processed before the programs run.
const INGRESS_BATCH: usize = 64;
/// A program, the name of its kind, and the full names of its counters.
struct RunningProgram {
    app: Box<dyn App>,
    kind: &'static str,
    names: Vec<&'static str>,
}

/// A TCP/IP station with its addresses, routes and programs.
pub struct StackEndpoint {
    mtu: usize,
    interface: Interface,
    sockets: SocketSet<'static>,
    apps: Vec<RunningProgram>,
    inbox: RxQueue,
    outgoing: Outgoing,
    pub(crate) next_port: u16,
    start_ns: Option<u64>,
    due_ns: Option<u64>,
}

impl std::fmt::Debug for StackEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StackEndpoint")
            .field("mtu", &self.mtu)
            .finish_non_exhaustive()
    }
}

impl StackEndpoint {
    /// Creates the station that `stack` describes, with Ethernet address `mac` (the multicast bit
    /// is ignored) and an MTU of `mtu` bytes. Its frames have complete checksums and fit the MTU.
    #[must_use]
    pub fn new(mac: [u8; 6], mtu: usize, stack: &StackConfig) -> Self {
        Self::with_offloads(mac, mtu, stack, false, false)
    }

    /// Creates a station like [`StackEndpoint::new`] that leaves offloads to the device: with
    /// `checksum`, TCP checksums; with `tso`, which requires `checksum`, segmentation of up to 64
    /// KB of TCP data.
    #[must_use]
    pub fn with_offloads(
        mac: [u8; 6],
        mtu: usize,
        stack: &StackConfig,
        checksum: bool,
        tso: bool,
    ) -> Self {
        let mut mac = EthernetAddress(mac);
        mac.0[0] &= !1;
        let mut outgoing = Outgoing::new(mtu, checksum, tso && checksum);
        let mut inbox = RxQueue::default();
        let mut config = Config::new(mac.into());
        config.random_seed = shmem::time::tsc()
            ^ mac
                .0
                .iter()
                .fold(0, |seed, byte| seed << 8 | u64::from(*byte));
        let next_port = FIRST_PORT + (config.random_seed >> 8) as u16 % 8192;
        let interface = interface(config, mac, mtu, stack, &mut inbox, &mut outgoing);
        let mut sockets = SocketSet::new(Vec::new());
        let apps = stack
            .apps
            .iter()
            .enumerate()
            .map(|(number, app)| RunningProgram::new(number, app, &mut sockets, &outgoing.files))
            .collect();
        Self {
            mtu,
            interface,
            sockets,
            apps,
            inbox,
            outgoing,
            next_port,
            start_ns: None,
            due_ns: Some(0),
        }
    }

    /// Adds a file in `memory` for programs that are configured to send it. Without a file these
    /// programs send zeros.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    pub fn with_file(self, memory: Area) -> Result<Self, Fault> {
        self.outgoing.files.borrow_mut().store_in(memory)?;
        Ok(self)
    }

    /// Returns the kind and counters of each program.
    #[must_use]
    pub fn report(&self) -> Value {
        let apps: Vec<Value> = self
            .apps
            .iter()
            .map(|running| {
                let mut report = Map::new();
                report.insert("app".into(), running.kind.into());
                let counters = running.app.counters();
                report.extend(
                    counters
                        .into_iter()
                        .map(|(name, n)| (name.into(), n.into())),
                );
                Value::Object(report)
            })
            .collect();
        json!({ "apps": apps })
    }

    /// Returns whether a turn has work.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        !self.inbox.is_empty() || self.due_ns.is_some_and(|due| due <= now_ns)
    }

    /// Runs one turn: processes received frames, runs the programs, and sends frames, until nothing
    /// changes.
    pub(crate) fn turn<'a>(&'a mut self, now_ns: u64, sink: FrameSink<'a>) {
        let now = Instant::from_micros((now_ns / 1000) as i64);
        let start_ns = *self.start_ns.get_or_insert(now_ns);
        let since_start_ns = now_ns.saturating_sub(start_ns);
        let mut link = StackDevice::new(&mut self.inbox, &mut self.outgoing, sink);
        self.interface.poll_maintenance(now);
        loop {
            let mut taken = 0;
            while taken < INGRESS_BATCH
                && !matches!(
                    self.interface
                        .poll_ingress_single(now, &mut link, &mut self.sockets),
                    PollIngressSingleResult::None
                )
            {
                taken += 1;
            }
            for running in &mut self.apps {
                running.app.step(&mut Context {
                    since_start_ns,
                    interface: &mut self.interface,
                    sockets: &mut self.sockets,
                    next_port: &mut self.next_port,
                });
            }
            let mut sent = false;
            while let PollResult::SocketStateChanged =
                self.interface
                    .poll_egress(now, &mut link, &mut self.sockets)
            {
                sent = true;
            }
            if taken == 0 && !sent || link.is_full() {
                break;
            }
        }
        link.finish();
        let stack_due = self.interface.poll_at(now, &self.sockets).map(|at| {
            u64::try_from(at.total_micros())
                .unwrap_or(0)
                .saturating_mul(1000)
        });
        let apps_due = self
            .apps
            .iter()
            .filter_map(|running| running.app.due_ns())
            .min();
        let apps_due = apps_due.map(|since_start| start_ns.saturating_add(since_start));
        self.due_ns = stack_due.into_iter().chain(apps_due).min();
    }
}

/// Creates the interface with its addresses and routes.
fn interface(
    config: Config,
    mac: EthernetAddress,
    mtu: usize,
    stack: &StackConfig,
    inbox: &mut RxQueue,
    outgoing: &mut Outgoing,
) -> Interface {
    let mut nothing = Vec::new();
    let mut supply = NoBuffers;
    let mut link = StackDevice::new(
        inbox,
        outgoing,
        FrameSink::frames(&mut supply, &mut nothing, 0),
    );
    let mut interface = Interface::new(config, &mut link, Instant::ZERO);
    interface.update_ip_addrs(|addresses| {
        for cidr in &stack.addresses {
            // Addresses beyond smoltcp's limit are ignored.
            let _ = addresses.push(IpCidr::new(cidr.address.into(), cidr.prefix));
        }
        if mtu >= 1280 && stack.addresses.iter().any(|cidr| cidr.address.is_ipv6()) {
            let _ = addresses.push(IpCidr::new(link_local(mac).into(), 64));
        }
    });
    let routed = match stack.gateway {
        Some(IpAddr::V4(gateway)) => interface
            .routes_mut()
            .add_default_ipv4_route(gateway)
            .map(drop),
        Some(IpAddr::V6(gateway)) => interface
            .routes_mut()
            .add_default_ipv6_route(gateway)
            .map(drop),
        None => Ok(()),
    };
    // The table is empty, so one route fits.
    debug_assert!(routed.is_ok());
    interface
}

/// Returns the link-local address of an Ethernet address (RFC 4291, appendix A).
fn link_local(mac: EthernetAddress) -> Ipv6Address {
    let [a, b, c, d, e, f] = mac.0.map(u16::from);
    Ipv6Address::new(
        0xfe80,
        0,
        0,
        0,
        (a ^ 2) << 8 | b,
        c << 8 | 0xff,
        0xfe00 | d,
        e << 8 | f,
    )
}

impl RunningProgram {
    fn new(
        number: usize,
        app: &StackApp,
        sockets: &mut SocketSet<'static>,
        files: &Rc<RefCell<SentFiles>>,
    ) -> Self {
        let seconds = |s: u32| u64::from(s) * 1_000_000_000;
        let (kind, app): (_, Box<dyn App>) = match *app {
            StackApp::TcpSink { port } => (
                "tcp-sink",
                Box::new(server::StreamServer::new(
                    server::ServerKind::Sink,
                    port,
                    sockets,
                )),
            ),
            StackApp::TcpEcho { port } => (
                "tcp-echo",
                Box::new(server::StreamServer::new(
                    server::ServerKind::Echo,
                    port,
                    sockets,
                )),
            ),
            StackApp::TcpSource {
                to,
                seconds: length,
                after_s,
                file_kb,
            } => (
                "tcp-source",
                Box::new(client::Stream::new(
                    to,
                    seconds(after_s),
                    seconds(length),
                    file_kb.map(|kb| FileStream::new(files, kb as usize * 1024)),
                    sockets,
                )),
            ),
            StackApp::TcpClient {
                to,
                size,
                seconds: length,
                after_s,
            } => (
                "tcp-client",
                Box::new(client::Requests::new(
                    to,
                    size,
                    seconds(after_s),
                    seconds(length),
                    sockets,
                )),
            ),
            StackApp::Ping { to, count, after_s } => {
                let ident = number as u16 + 1;
                (
                    "ping",
                    Box::new(Ping::new(to, count, seconds(after_s), ident, sockets)),
                )
            }
        };
        // The name is created once per program and never freed, because counter names are static.
        let name = |suffix| &*Box::leak(format!("app.{number}.{suffix}").into_boxed_str());
        let names = app
            .counters()
            .into_iter()
            .map(|(suffix, _)| name(suffix))
            .collect();
        Self { app, kind, names }
    }
}

impl Nic for StackEndpoint {
    fn caps(&self) -> Caps {
        Caps {
            checksum: true,
            tso: true,
            max_frame: FRAME_MAX,
        }
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        if !self.is_due(now_ns) {
            self.outgoing.clear_starved();
            return 0;
        }
        let before = out.len();
        self.turn(now_ns, FrameSink::frames(buffers, out, budget));
        out.len() - before
    }

    fn tx(&mut self, _now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let mut report = TxReport::default();
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            self.inbox.add(frame, &mut report);
        }
        report
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        if self.inbox.is_empty() {
            self.due_ns
        } else {
            Some(now_ns)
        }
    }

    fn starved(&self) -> bool {
        self.outgoing.starved()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.inbox.counters();
        all.extend(self.outgoing.counters());
        for running in &self.apps {
            let values = running.app.counters().into_iter().map(|(_, value)| value);
            all.extend(running.names.iter().copied().zip(values));
        }
        all
    }
}
