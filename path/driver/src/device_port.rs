//! A NIC whose device is a separate domain. The driver grants that domain the rings and the pool,
//! and reconnects when it restarts.

use abi::hypercall::CreateGrantOp;
use abi::{PAGE, XenbusState};
use nic::dma::record::QueueRecord;
use nic::dma::{DeviceDoorbell, RemoteNic, RemoteQueue};
use nic::{Buffers, Frame, Middleware, Nic as _};
use runtime::call::{Calls, OwnTable};
use runtime::frontend::{FrontendConnection, HandshakeStep};
use runtime::platform::{ConnectRecord, Doorbell, NO_RECORD, PeerEnd};
use runtime::start::print_line;
use shmem::Area;
use std::cell::RefCell;
use std::rc::Rc;

/// This domain's memory and hypercalls.
#[derive(Clone, Debug)]
pub struct OwnDomain {
    /// All frames of this domain.
    pub frames: Area,
    /// The hypercalls of this domain.
    pub calls: Rc<RefCell<Calls>>,
}

/// The NIC and its connection to the device.
#[derive(Debug)]
pub struct DevicePort {
    name: String,
    nic: RemoteNic,
    link: FrontendConnection,
    /// Memory that the device may access, in the order of the I/O addresses.
    granted: [Area; 2],
    domain: OwnDomain,
    /// Grant table of the connection. Set from the layout of the rings until the connection ends.
    table: Option<OwnTable>,
}

/// The doorbell of the device's domain.
#[derive(Debug)]
struct DeviceBell(Rc<dyn Doorbell>);

impl DeviceDoorbell for DeviceBell {
    fn ring(&self) {
        self.0.ring();
    }
}

impl DevicePort {
    /// Creates a port. `granted` has the memory of the queues and the memory of the pool.
    #[must_use]
    pub fn new(
        name: String,
        nic: RemoteNic,
        link: FrontendConnection,
        granted: [Area; 2],
        domain: OwnDomain,
    ) -> Self {
        Self {
            name,
            nic,
            link,
            granted,
            domain,
            table: None,
        }
    }

    fn log(&self, what: &str) {
        print_line(format_args!("nic.{}: {what}", self.name));
    }

    /// Advances the handshake as far as the device's state allows.
    fn advance(&mut self, buffers: &mut dyn Buffers) {
        // Each pass performs one step; a handshake has fewer steps than this loop has passes.
        for _ in 0..8 {
            let before = self.link.state;
            let Some(peer) = self.link.peer() else { return };
            match self.link.next_step(&peer, true) {
                HandshakeStep::Wait => {}
                HandshakeStep::Initialize => match self.lay_out(&peer) {
                    Ok(record) => self.link.set_state(XenbusState::Initialised, &record),
                    Err(why) => self.close(&why, buffers),
                },
                HandshakeStep::Connect => match self.link.attach_doorbell() {
                    Ok(doorbell) => {
                        self.link.reset_refusals();
                        self.nic.connect(Rc::new(DeviceBell(doorbell)));
                        self.link.set_state(XenbusState::Connected, &NO_RECORD);
                        self.log("the link is up");
                    }
                    Err(why) => self.close(&why, buffers),
                },
                HandshakeStep::CloseRefused => {
                    self.link.count_refusal();
                    self.close("the device rejects the queues", buffers);
                }
                HandshakeStep::Close("") => self.close("the device has closed", buffers),
                HandshakeStep::Close(why) => self.close(why, buffers),
                HandshakeStep::Restart => {
                    self.link.set_state(XenbusState::Initialising, &NO_RECORD);
                }
            }
            if self.link.state == before {
                return;
            }
        }
    }

    /// Empties the queues, grants the device the queues and the pool, and returns the record for
    /// the device.
    fn lay_out(&mut self, peer: &PeerEnd) -> Result<ConnectRecord, String> {
        self.link.set_backend(peer.domain);
        let pages: usize = self.granted.iter().map(|area| area.len() / PAGE).sum();
        let calls = &self.domain.calls;
        let table = calls
            .borrow_mut()
            .create_table(self.link.conn, pages as u32)
            .map_err(|why| format!("cannot create a grant table: {}", why.name()))?;
        self.table = Some(OwnTable::new(calls, table));
        let queues = self.nic.lay_out().ok_or("the rings do not fit")?;
        let frames = self.domain.frames.span().addr();
        let frames = self.granted.iter().flat_map(|area| {
            let first = area.span().addr().saturating_sub(frames) / PAGE;
            first..first + area.len() / PAGE
        });
        let grant = |(index, frame): (u32, usize)| CreateGrantOp {
            table,
            index,
            frame: frame as u32,
            readonly: false,
            io: false,
        };
        let grants: Vec<_> = (0..).zip(frames).map(grant).collect();
        let mut statuses = Vec::new();
        calls.borrow_mut().create_grants(&grants, &mut statuses);
        if let Some(Err(why)) = statuses.into_iter().find(Result::is_err) {
            return Err(format!("cannot grant a page: {}", why.name()));
        }
        let record = QueueRecord {
            table,
            pages: pages as u32,
            descriptors: self.nic.entries(),
            receive: queues.receive,
            transmit: queues.transmit,
            dedicated: queues.dedicated,
            queues: self.nic.dedicated_queues(),
        };
        Ok(record.encode())
    }

    /// Revokes all pages from the device, and then takes its buffers back. The reverse order would
    /// reuse buffers that the device can still write.
    fn close(&mut self, why: &str, buffers: &mut dyn Buffers) {
        self.table = None;
        self.nic.disconnect(buffers);
        self.link.set_state(XenbusState::Closed, &NO_RECORD);
        self.log(&format!("{why}; the link is down"));
    }
}

impl Middleware for DevicePort {
    type Inner = RemoteNic;

    fn inner(&self) -> &RemoteNic {
        &self.nic
    }

    fn inner_mut(&mut self) -> &mut RemoteNic {
        &mut self.nic
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let taken = self.nic.rx(now_ns, budget, buffers, out);
        if let Some(error) = self.nic.close_reason()
            && self.table.is_some()
        {
            self.close(&error.to_string(), buffers);
        }
        taken
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        self.nic.next_due(now_ns).filter(|_| self.table.is_some())
    }

    fn dedicated(&mut self, number: u32) -> Option<RemoteQueue> {
        self.nic.dedicated(number)
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        self.table = None;
        self.nic.release(buffers);
    }

    fn connection_changed(&mut self, buffers: &mut dyn Buffers) {
        self.advance(buffers);
    }
}
