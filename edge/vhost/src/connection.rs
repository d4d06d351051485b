//! The state of one connection, and the answer to each request.

use crate::ProtocolError;
use crate::control::ControlQueue;
use crate::features::{CONFIG_BYTES, Offer, VirtioFeatures, protocol, virtio};
use crate::log::DirtyLog;
use crate::memory::{REGIONS_MAX, RegionDescription, VmMemory};
use crate::message::{CONFIG_CHANGED, FDS_MAX, VhostMessage, reply};
use crate::queue::{RingAddresses, RingError, SIZE_MAX};
use crate::request::VhostRequest;
use crate::socket::{VmmSocket, nonblocking};
use crate::system::VhostSystem;
use crate::vring::Vring;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum number of messages answered in one turn.
const MESSAGES_PER_TURN: usize = 64;
/// Bytes of the offset, length and flags that precede the contents of a configuration space.
const CONFIG_HEADER: usize = 12;
/// Bytes that precede the first region of a memory table.
const TABLE_HEADER: usize = 8;
/// Bytes of a region in a message.
const REGION_BYTES: usize = 32;
/// Flag of `SET_VRING_ADDR`: writes to the used ring are logged.
const ADDR_LOG: u32 = 1;
/// Bit of a message for passing a ring's descriptor; if set, no descriptor is attached.
const NO_FD: u64 = 1 << 8;
/// Bits of that message that hold the ring's number.
const RING_MASK: u64 = 0xff;

/// A connection with a virtual machine's monitor.
#[derive(Debug)]
pub(crate) struct VmmConnection {
    socket: VmmSocket,
    offer: Offer,
    pub(crate) features: VirtioFeatures,
    protocol: u64,
    pub(crate) memory: VmMemory,
    /// Receive queue 0, transmit queue 0, receive queue 1, …; the control queue.
    pub(crate) vrings: Vec<Vring>,
    control: ControlQueue,
    is_link_up: bool,
    /// Channel for requests of the back end. It stays open because the front end polls its other
    /// end.
    backend_req: Option<OwnedFd>,
    /// Whether the driver has been ready to receive since the connection began.
    has_run: bool,
    /// Whether the virtual machine's MAC must be announced to the network.
    pub(crate) announces: bool,
}

/// Answer to a request.
enum RequestOutcome {
    /// The request succeeded. The front end gets an answer only if it requested one.
    Done,
    /// The request failed; the connection continues.
    Failed,
    /// A payload.
    With(Vec<u8>),
}

impl RequestOutcome {
    fn u64(value: u64) -> Self {
        Self::With(value.to_le_bytes().to_vec())
    }
}

impl VmmConnection {
    pub(crate) fn new(
        socket: OwnedFd,
        offer: Offer,
        is_link_up: bool,
    ) -> Result<Self, ProtocolError> {
        let rings = offer.rings();
        Ok(Self {
            socket: VmmSocket::new(socket)?,
            offer,
            features: VirtioFeatures::default(),
            protocol: 0,
            memory: VmMemory::new(offer.memory_max),
            vrings: (0..rings).map(|_| Vring::default()).collect(),
            control: ControlQueue::default(),
            is_link_up,
            backend_req: None,
            has_run: false,
            announces: false,
        })
    }

    /// Returns the socket.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Answers pending requests. Returns whether it found any.
    pub(crate) fn serve(&mut self, system: &mut dyn VhostSystem) -> Result<bool, ProtocolError> {
        for answered in 0..MESSAGES_PER_TURN {
            // The log is checked first because an answer may report that a ring has stopped.
            self.memory.check_log()?;
            let Some(mut message) = self.socket.receive()? else {
                return Ok(answered > 0);
            };
            let request = message.header.request;
            let answer = self.answer(&mut message, system);
            // User-Mode Linux expects an acknowledgement even of the request that negotiates
            // acknowledgements.
            let acknowledges =
                message.header.needs_reply && self.protocol & protocol::REPLY_ACK != 0;
            match answer {
                Ok(RequestOutcome::With(payload)) => self.socket.send(&reply(request, &payload))?,
                Ok(answer) if acknowledges => {
                    let status = u64::from(matches!(answer, RequestOutcome::Failed));
                    self.socket.send(&reply(request, &status.to_le_bytes()))?;
                }
                Ok(_) => {}
                Err(refusal) => {
                    if acknowledges {
                        let _ = self.socket.send(&reply(request, &1_u64.to_le_bytes()));
                    }
                    return Err(refusal);
                }
            }
        }
        Ok(true)
    }

    /// Closes the connection and releases its resources.
    pub(crate) fn close(mut self, system: &mut dyn VhostSystem) {
        for vring in &mut self.vrings {
            vring.stop(system);
        }
        self.memory.set_log(None, system);
        self.memory.clear(system);
        system.unwatch(self.socket.as_fd());
    }

    fn answer(
        &mut self,
        message: &mut VhostMessage,
        system: &mut dyn VhostSystem,
    ) -> Result<RequestOutcome, ProtocolError> {
        match message.header.request {
            VhostRequest::GetFeatures => return Ok(RequestOutcome::u64(self.offer.features())),
            VhostRequest::SetFeatures => self.set_features(message.u64(0)?)?,
            VhostRequest::GetProtocolFeatures => {
                return Ok(RequestOutcome::u64(self.offer.protocol_features()));
            }
            VhostRequest::SetProtocolFeatures => self.set_protocol_features(message.u64(0)?)?,
            VhostRequest::GetQueueNum => {
                return Ok(RequestOutcome::u64(self.offer.queue_pairs.into()));
            }
            VhostRequest::GetMaxMemSlots => return Ok(RequestOutcome::u64(REGIONS_MAX as u64)),
            VhostRequest::SetOwner => {}
            VhostRequest::ResetOwner => self.reset(system),
            VhostRequest::SetMemTable => self.set_mem_table(message, system)?,
            VhostRequest::AddMemReg => {
                let file = message.fd()?;
                self.memory
                    .add(region(message, TABLE_HEADER)?, file.as_fd(), system)?;
                self.refresh();
            }
            // QEMU sends the region's descriptor again, which is not needed.
            VhostRequest::RemMemReg => {
                self.memory.remove(&region(message, TABLE_HEADER)?, system);
                self.refresh();
            }
            VhostRequest::SetLogBase => return self.set_log_base(message, system),
            // The descriptor is not needed: the reader of the log is not notified.
            VhostRequest::SetLogFd => drop(message.fd()?),
            VhostRequest::NetSetMtu => {
                if message.u64(0)? > self.offer.mtu.into() {
                    return Ok(RequestOutcome::Failed);
                }
            }
            // The front end's MAC is not needed: the driver has the interface's.
            VhostRequest::SendRarp => self.announces = true,
            VhostRequest::SetBackendReqFd => {
                let fd = message.fd()?;
                nonblocking(fd.as_fd()).map_err(ProtocolError::Socket)?;
                self.backend_req = Some(fd);
            }
            VhostRequest::GetConfig => return self.get_config(message),
            // The machine's configuration determines the driver's MAC.
            VhostRequest::SetConfig => {}
            // Chains are returned in order, so nothing is in flight after a restart. A buffer of
            // zeros reports this to QEMU.
            VhostRequest::GetInflightFd => {
                return Ok(RequestOutcome::With(vec![0; message.payload().len()]));
            }
            VhostRequest::SetInflightFd => {}
            _ => return self.answer_for_ring(message, system),
        }
        Ok(RequestOutcome::Done)
    }

    /// Answers a request about a ring.
    fn answer_for_ring(
        &mut self,
        message: &mut VhostMessage,
        system: &mut dyn VhostSystem,
    ) -> Result<RequestOutcome, ProtocolError> {
        let request = message.header.request;
        let number = match request {
            VhostRequest::SetVringKick | VhostRequest::SetVringCall | VhostRequest::SetVringErr => {
                (message.u64(0)? & RING_MASK) as u32
            }
            _ => message.u32(0)?,
        };
        let at = number as usize;
        let Self {
            vrings,
            memory,
            features,
            ..
        } = self;
        let vring = vrings.get_mut(at).ok_or(ProtocolError::Ring(number))?;
        match request {
            VhostRequest::SetVringNum => vring.size = ring_size(message.u32(4)?)?,
            VhostRequest::SetVringBase => {
                vring.stop(system);
                vring.base = message.u32(4)? as u16;
            }
            VhostRequest::GetVringBase => {
                let base = vring.stop(system);
                // QEMU frees the log of a device that it stops, and sends another one at the end of
                // the next start.
                if vrings.iter().all(Vring::is_stopped) {
                    memory.set_log(None, system);
                }
                let words = [number, base.into()];
                return Ok(RequestOutcome::With(
                    words.into_iter().flat_map(u32::to_le_bytes).collect(),
                ));
            }
            VhostRequest::SetVringAddr => {
                let flags = message.u32(4)?;
                vring.addresses = Some(RingAddresses {
                    table: message.u64(8)?,
                    used: message.u64(16)?,
                    avail: message.u64(24)?,
                    log: (flags & ADDR_LOG != 0).then_some(message.u64(32)?),
                });
            }
            VhostRequest::SetVringEnable => vring.enabled = message.u32(4)? != 0,
            VhostRequest::SetVringKick => {
                let kick = ring_fd(message)?.ok_or(ProtocolError::NoKick(at))?;
                vring
                    .set_kick(Some(kick), system)
                    .map_err(|why| ProtocolError::Watch(at, why))?;
            }
            VhostRequest::SetVringCall => vring.set_call(ring_fd(message)?)?,
            _ => vring.set_err(ring_fd(message)?)?,
        }
        vring.refresh(memory, *features);
        match vring.lacks_memory(memory) {
            true => Err(ProtocolError::RingAddress(at)),
            false => Ok(RequestOutcome::Done),
        }
    }

    fn set_features(&mut self, features: u64) -> Result<(), ProtocolError> {
        match features & !self.offer.features() {
            0 => {
                // A change of this bit alone means that a migration begins or ends, not that the
                // driver restarts.
                if self.features.0 ^ features != virtio::LOG_ALL {
                    self.control = ControlQueue::default();
                }
                self.features = VirtioFeatures(features);
            }
            more => return Err(ProtocolError::Features(more)),
        }
        self.memory.set_logging(self.has(virtio::LOG_ALL));
        self.refresh();
        Ok(())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<(), ProtocolError> {
        match features & !self.offer.protocol_features() {
            0 => self.protocol = features,
            more => return Err(ProtocolError::Features(more)),
        }
        Ok(())
    }

    /// Stops all rings and discards the negotiated features.
    fn reset(&mut self, system: &mut dyn VhostSystem) {
        for vring in &mut self.vrings {
            vring.stop(system);
            vring.enabled = false;
        }
        self.features = VirtioFeatures::default();
        self.memory.set_logging(false);
        self.memory.set_log(None, system);
        self.control = ControlQueue::default();
    }

    fn set_mem_table(
        &mut self,
        message: &mut VhostMessage,
        system: &mut dyn VhostSystem,
    ) -> Result<(), ProtocolError> {
        let count = message.u32(0)? as usize;
        if count > FDS_MAX {
            return Err(ProtocolError::Memory {
                regions: FDS_MAX,
                bytes: self.offer.memory_max,
            });
        }
        message.fds(count)?;
        // Monitors pad the table, so the number of regions determines its length.
        let regions = (0..count).map(|n| region(message, TABLE_HEADER + n * REGION_BYTES));
        let regions: Vec<RegionDescription> = regions.collect::<Result<_, _>>()?;
        // QEMU sends the same table for every queue pair.
        if self.memory.has_regions(&regions) {
            return Ok(());
        }
        self.memory.clear(system);
        for (region, file) in regions.into_iter().zip(message.fds.drain(..)) {
            self.memory.add(region, file.as_fd(), system)?;
        }
        self.refresh();
        Ok(())
    }

    fn set_log_base(
        &mut self,
        message: &mut VhostMessage,
        system: &mut dyn VhostSystem,
    ) -> Result<RequestOutcome, ProtocolError> {
        let (bytes, offset) = (message.u64(0)?, message.u64(8)?);
        let file = message.fd()?;
        let log = DirtyLog::new(file.as_fd(), offset, bytes, self.offer.memory_max, system)?;
        self.memory.set_log(Some(log), system);
        self.refresh();
        Ok(RequestOutcome::u64(0))
    }

    fn get_config(&self, message: &VhostMessage) -> Result<RequestOutcome, ProtocolError> {
        let (offset, bytes) = (message.u32(0)? as usize, message.u32(4)? as usize);
        let space = self.offer.config_space(self.is_link_up);
        let mut payload = message.payload().to_vec();
        let to = payload
            .get_mut(CONFIG_HEADER..)
            .and_then(|to| to.get_mut(..bytes));
        let end = offset.checked_add(bytes).filter(|end| *end <= CONFIG_BYTES);
        match (to, end.and_then(|end| space.get(offset..end))) {
            (Some(to), Some(from)) => to.copy_from_slice(from),
            // A reply without payload means that the request failed.
            _ => return Ok(RequestOutcome::With(Vec::new())),
        }
        Ok(RequestOutcome::With(payload))
    }

    /// Applies changes of features and memory to the rings. A ring without memory stops until a
    /// region provides it again.
    fn refresh(&mut self) {
        for vring in &mut self.vrings {
            vring.refresh(&self.memory, self.features);
        }
    }

    /// Sets the link's state in the configuration space, and notifies the front end if it accepts
    /// requests.
    pub(crate) fn set_link(&mut self, is_up: bool) {
        self.is_link_up = is_up;
        if let Some(channel) = &self.backend_req {
            // If the channel is full, the front end still has unread requests, which have the same
            // effect.
            let _ = rustix::io::write(channel, &CONFIG_CHANGED);
        }
    }

    /// Returns the number of the control queue, if the back end serves it.
    pub(crate) fn control_ring(&self) -> Option<usize> {
        self.features.control_ring(self.offer.queue_pairs)
    }

    /// Executes the driver's commands. Returns whether it found any.
    ///
    /// # Errors
    /// Returns the number of the control queue if it is broken.
    pub(crate) fn serve_control(&mut self) -> Result<bool, (usize, RingError)> {
        let Some(ring) = self.control_ring() else {
            return Ok(false);
        };
        let vring = self.vrings.get_mut(ring);
        let Some((vring, queue)) = vring.and_then(Vring::running) else {
            return Ok(false);
        };
        let (memory, most) = (&self.memory, self.offer.queue_pairs);
        let served = self.control.serve((queue, memory), most);
        let served = served.map_err(|broken| (ring, broken))?;
        if served.is_called {
            vring.call();
        }
        Ok(served.commands > 0)
    }

    /// Returns the number of pairs that receive frames. They run, and the driver uses them.
    pub(crate) fn pairs_in_use(&self) -> u16 {
        let most = match self.control_ring() {
            Some(_) => self.control.pairs,
            None => self.offer.queue_pairs,
        };
        let receive = self.vrings.iter().step_by(2).take(most.into());
        let running = receive.take_while(|vring| vring.queue.is_some());
        running.count() as u16
    }

    /// Records that `pairs` pairs receive frames. When the driver first runs, requests an
    /// announcement, because the virtual machine may have migrated and the network may still send
    /// its frames to the old host.
    pub(crate) fn runs(&mut self, pairs: u16) {
        if pairs > 0 && !std::mem::replace(&mut self.has_run, true) {
            self.announces = true;
        }
    }

    /// Returns whether the driver has accepted all features of `mask`.
    pub(crate) fn has(&self, mask: u64) -> bool {
        self.features.has(mask)
    }

    /// Returns whether the driver accepts unsegmented TCP over both IPv4 and IPv6.
    pub(crate) fn takes_tso(&self) -> bool {
        self.has(virtio::GUEST_CSUM | virtio::GUEST_TSO4 | virtio::GUEST_TSO6)
    }
}

/// Returns the region at an offset of a payload.
fn region(message: &VhostMessage, at: usize) -> Result<RegionDescription, ProtocolError> {
    Ok(RegionDescription {
        gpa: message.u64(at)?,
        bytes: message.u64(at + 8)?,
        uva: message.u64(at + 16)?,
        offset: message.u64(at + 24)?,
    })
}

fn ring_size(size: u32) -> Result<u16, ProtocolError> {
    match u16::try_from(size) {
        Ok(size) if size.is_power_of_two() && size <= SIZE_MAX => Ok(size),
        _ => Err(ProtocolError::RingSize(size)),
    }
}

/// Returns the descriptor of a message about a ring, if it has one.
fn ring_fd(message: &mut VhostMessage) -> Result<Option<OwnedFd>, ProtocolError> {
    if message.u64(0)? & NO_FD == 0 {
        return message.fd().map(Some);
    }
    message.fds(0)?;
    Ok(None)
}
