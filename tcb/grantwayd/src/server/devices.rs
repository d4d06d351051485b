//! Devices, which netd opens. The core keeps duplicates of all descriptors of a device, so that the
//! next netd can adopt it, and gives domains their descriptors. Only netd knows the type of a
//! device.
//!
//! A socket is the only device that needs several steps:
//!
//! ```text
//!   manager            core                          netd
//!   GiveSocket ──────► Socket ─────────────────────► creates it, without memory
//!                      registers the domain's frames ◄── Made
//!                      Bind ───────────────────────► binds it, directs frames to it
//!   Done ◄──────────── gives the domain the device ◄── Bound
//! ```
//!
//! A PCI device needs the same steps: netd stops it, the core maps the domain's frames in its I/O
//! page table, and netd starts it. When the domain exits, netd stops the device, and then the core
//! unmaps the frames.

use super::Core;
use super::handles::{BoundSocket, DevHandle, PendingRequest, RingExtents, SOCKETS, copies};
use super::requests::{RequestError, RequestResult, attachment, done, value};
use crate::netd::{NetdSocket, NetdTap};
use abi::core::{CoreMessage, NetdReply, NetdRequest, NewSocket, Record, Stage};
use abi::layout::ring_slots;
use abi::pci::IO_BASE;
use abi::status::Program;
use abi::{DomId, PAGE, Slot};
use link::{Link, Received, sealed};
use monitor::{DeviceMap, DomainDevice, Pin, RetainedFrames};
use shmem::Span;
use shmem::io_map::IoMapping;
use std::mem::take;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Maximum bytes of a refusal's reason, or of the list of missing features.
const TEXT_MAX: usize = 64 << 10;
/// Maximum number of entries of a socket's ring: the kernel's limit.
const ENTRIES_MAX: u32 = 1 << 16;

type Fds = Vec<OwnedFd>;

fn netd_is_restarting() -> RequestError {
    let why = "netd is being restarted".into();
    RequestError { why, is_busy: true }
}

impl Core {
    /// Welcomes a netd that was just started: sends it all devices and a control link.
    pub(super) fn init_netd(&mut self) {
        let attachments = Link::pair().and_then(|(ours, theirs)| {
            self.control.replace(Some(ours));
            Ok(vec![theirs.into(), self.machine.try_clone()?])
        });
        match attachments.and_then(|attachments| self.devs.adoption_tasks(attachments)) {
            Ok(tasks) => {
                for (token, task, fds) in tasks {
                    self.send_to_netd(token, task, fds);
                }
            }
            Err(_) => self.netd.kill(),
        }
    }

    /// Answers all requests that were waiting for an answer of the exited netd.
    pub(super) fn netd_exited(&mut self, now: u64) {
        self.control.replace(None);
        let mut left = self.netd.ended(now);
        let over = |_: &u32, (_, waits): &mut (u32, PendingRequest)| {
            !matches!(waits, PendingRequest::Close(..))
        };
        let over: Vec<_> = self.devs.waiting.extract_if(.., over).collect();
        for (_, (token, mut waits)) in over {
            if let PendingRequest::Closed(Some(closed_by)) = waits {
                self.answer(closed_by, done());
            }
            left.append(&mut waits.take_descriptors());
            self.answer(token, Err(netd_is_restarting()));
        }
        self.hypervisor.close(left);
    }

    /// Handles netd's replies. Kills netd if it violates the protocol.
    pub(super) fn read_netd(&mut self) {
        while let Some(Received { record, mut fds }) = self.netd.receive() {
            self.handle_reply(record, &mut fds);
            self.hypervisor.close(fds);
        }
    }

    /// Sends netd a task on behalf of a request, which then waits for the outcome.
    fn begin(
        &mut self,
        token: u32,
        waits: PendingRequest,
        task: NetdRequest,
        fds: Fds,
    ) -> RequestResult {
        if !self.netd.is_linked() {
            return Err(netd_is_restarting());
        }
        let begun = self.devs.add_pending(token, waits);
        self.send_to_netd(begun, task, fds);
        Ok(None)
    }

    /// Asks netd to open a device.
    pub(super) fn open(&mut self, token: u32, dev: u32, fds: Fds) -> RequestResult {
        if dev >= SOCKETS || self.devs.kept.contains_key(&dev) {
            let why = format!("device {dev} is already open, or its number is invalid");
            return Err(why.into());
        }
        let description = copies(fds.first().map(AsFd::as_fd).into_iter())?.pop();
        let waits = PendingRequest::Open(dev, description);
        self.begin(token, waits, NetdRequest::Open { dev }, fds)
    }

    /// Closes a device. If netd is still opening the device, it completes that first. If netd exits
    /// before it has closed the device, its successor closes it.
    pub(super) fn close(&mut self, token: u32, dev: u32) -> RequestResult {
        self.lasting.remove(&dev);
        // The device's name remains in use until its socket is also closed, and the next device may
        // need the name.
        self.close_unused_sockets();
        let (is_opening, description) = self.devs.close(token, dev);
        let opening = |by| DevHandle::new(NetdRequest::Adopt { dev, given: 0 }, vec![by]);
        let mut left = self.devs.kept.remove(&dev);
        for left in left.iter_mut().filter(|_| self.netd.is_linked()) {
            // If netd has died, its descriptors are closed, and these are the last.
            self.hypervisor.close(left.take_unneeded_fds());
        }
        let left = left.or(description.map(opening));
        let task = self.devs.add_pending(0, PendingRequest::Close(dev, left));
        self.send_to_netd(task, NetdRequest::Close { dev }, Vec::new());
        // If netd is still opening the device, the request waits for netd's answer.
        Ok((!is_opening).then(Default::default))
    }

    /// Closes sockets that no domain uses any longer.
    pub(super) fn close_unused_sockets(&mut self) {
        for dev in self.control.take_closed() {
            let _answer = self.close(0, dev);
        }
    }

    /// Gives a domain a descriptor of a device.
    pub(super) fn give(
        &mut self,
        domain: DomId,
        dev: u32,
        place: u32,
        controls: bool,
    ) -> RequestResult {
        let open = self.devs.kept.get(&dev);
        let fd = open.and_then(|open| open.given(place));
        let fd = fd.ok_or_else(|| format!("device {dev} has no descriptor {place}"))?;
        let device = DomainDevice {
            control: controls.then(|| NetdTap::control(&self.control, dev)),
            ..fd.try_clone()?.into()
        };
        self.hypervisor.give_device(domain, Some(device))?;
        done()
    }

    /// Starts to give a domain a socket.
    pub(super) fn give_socket(&mut self, token: u32, socket: NewSocket, fds: Fds) -> RequestResult {
        if socket.is_pci && socket.frames_owner.is_some() {
            return Err("a PCI device uses only the frames of its domain".into());
        }
        if !(1..=ENTRIES_MAX).contains(&socket.entries) {
            return Err(format!("a ring cannot have {} entries", socket.entries).into());
        }
        if socket.frames_owner.is_none()
            && let Some(bound) = self.lasting.remove(&socket.on)
        {
            // The domain inherited the socket, and can use it with the same frames.
            let memory = self.hypervisor.memory(socket.domain);
            let has = |retained| memory.is_some_and(|memory| Arc::ptr_eq(&memory.frames, retained));
            if bound.socket == socket && bound.retained_frames.as_ref().is_some_and(has) {
                return self.give_bound(bound);
            }
        }
        let dev = self.devs.next_socket();
        let (on, is_queue) = (socket.on, socket.frames_owner.is_some());
        let task = NetdRequest::Socket { on, dev, is_queue };
        self.begin(token, PendingRequest::Make(socket, dev), task, fds)
    }

    /// Handles a reply of netd. Unused descriptors remain in `fds`.
    fn handle_reply(&mut self, record: Record<NetdReply>, fds: &mut Fds) {
        if let NetdReply::Lost { dev, is_removed } = record.message {
            // `kept` does not contain a device that was closed in the meantime.
            if let Some(open) = self.devs.kept.get_mut(&dev)
                && open.lost.replace(is_removed) != Some(is_removed)
            {
                self.send_to_manager(0, CoreMessage::DeviceLost { dev, is_removed }, Vec::new());
            }
            return;
        }
        // A reply for which no request waits is dropped.
        let Some((token, mut waits)) = self.devs.waiting.remove(&record.token) else {
            return;
        };
        fds.splice(..0, waits.take_descriptors());
        let answer = match (record.message, waits) {
            (_, PendingRequest::Close(..)) => return,
            (_, PendingRequest::Closed(closed_by)) => {
                if let Some(closed_by) = closed_by {
                    self.answer(closed_by, done());
                }
                Err("the device was closed in the meantime".into())
            }
            (NetdReply::Refused { is_busy }, _) => {
                let why = fds.last().and_then(|fd| sealed::read(fd, TEXT_MAX).ok());
                let why = why.unwrap_or_else(|| "the reason is unreadable".into());
                let why = String::from_utf8_lossy(&why).into_owned();
                Err(RequestError { why, is_busy })
            }
            (NetdReply::Opened { given }, PendingRequest::Open(dev, _)) => {
                self.opened(dev, given, fds)
            }
            (NetdReply::Made {}, PendingRequest::Make(socket, dev)) => {
                self.made(token, socket, dev, fds)
            }
            (
                NetdReply::Bound { rings, is_reusable },
                PendingRequest::Bind(socket, dev, _, mapping),
            ) => self.handle_bound((socket, mapping), dev, (rings, is_reusable), fds),
            _ => Err("netd has sent an answer of the wrong type".into()),
        };
        self.answer(token, answer);
    }

    fn opened(&mut self, dev: u32, given: u32, fds: &mut Fds) -> RequestResult {
        if fds.len() < 2 || given as usize > fds.len() - 2 {
            return Err("netd has opened a device without passing its descriptors".into());
        }
        sealed::check(&fds[1], TEXT_MAX)?;
        let lacks = fds.remove(1);
        let open = DevHandle::new(NetdRequest::Adopt { dev, given }, take(fds));
        self.devs.kept.insert(dev, open);
        value(given.into(), vec![lacks])
    }

    /// Returns the frames of a dead driver domain that its successor inherits: the frames of
    /// sockets with which it can continue, or all frames if the domain had no sockets. The data in
    /// these frames outlives the domain.
    pub(super) fn retained_frames(&self, dead: DomId) -> RetainedFrames {
        let is_driver = self.hypervisor.domain(dead)?.spec.program == Program::Driver;
        let mut all = self.lasting.values();
        match all.find(|bound| bound.socket.domain == dead && is_driver) {
            Some(bound) => bound.retained_frames.clone(),
            None => self.known.get(&dead)?.retained.clone(),
        }
    }

    /// Assigns a dead domain's sockets to its successor.
    pub(super) fn assign_sockets(&mut self, dead: DomId, next: DomId) {
        let all = self.lasting.values_mut();
        for bound in all.filter(|bound| bound.socket.domain == dead) {
            bound.socket.domain = next;
            bound.control.is_sound.store(false, Ordering::Relaxed);
        }
    }

    /// Returns the memory of a socket's frames.
    fn umem(&self, socket: &NewSocket) -> Result<Span, RequestError> {
        let domain = self.hypervisor.domain(socket.domain);
        let built = domain.is_some_and(|domain| domain.liveness.stage == Stage::Built);
        let of = socket.frames_owner.unwrap_or(socket.domain);
        let memory = self.hypervisor.memory(of).filter(|_| built);
        let memory = memory.ok_or("the domain no longer exists")?;
        let bytes = |pages: u32| pages as usize * PAGE;
        let umem = memory.frames.span();
        let umem = umem.sub(bytes(socket.first_frame), bytes(socket.frames));
        umem.ok_or_else(|| "the device's frames are outside the memory of the domain".into())
    }

    /// Handles a new socket: registers its memory, and asks netd to bind the socket.
    fn made(&mut self, token: u32, socket: NewSocket, dev: u32, fds: &mut Fds) -> RequestResult {
        let registered = match socket.is_pci {
            true => self.map_io(&socket, fds).map(Some),
            false => self.register(&socket, fds).map(|()| None),
        };
        let mapping = match registered {
            Ok(mapping) => mapping,
            Err(refusal) => {
                self.send_to_netd(0, NetdRequest::Close { dev }, Vec::new());
                return Err(refusal);
            }
        };
        let waits = PendingRequest::Bind(socket, dev, take(fds), mapping);
        self.begin(token, waits, NetdRequest::Bind { dev }, Vec::new())
    }

    /// Maps the frames that a PCI device may access.
    fn map_io(&self, socket: &NewSocket, fds: &[OwnedFd]) -> Result<IoMapping, RequestError> {
        let (container, memory) = (attachment(fds)?.try_clone()?, self.umem(socket)?);
        let mapped = IoMapping::new(container, memory, IO_BASE);
        Ok(mapped.map_err(|e| {
            format!(
                "the memory of PCI device {} cannot be mapped: {e}",
                socket.on
            )
        })?)
    }

    fn register(&self, socket: &NewSocket, fds: &[OwnedFd]) -> Result<(), RequestError> {
        let umem = shmem::umem::Umem {
            span: self.umem(socket)?,
            chunk_bytes: socket.chunk_bytes,
            entries: socket.entries,
            // The driver domain never sends from another domain's memory.
            transmits: socket.frames_owner.is_none(),
        };
        let registered = shmem::umem::register(attachment(fds)?, &umem);
        Ok(registered.map_err(|e| format!("the memory of an AF_XDP socket: {e}"))?)
    }

    /// Handles a bound socket: gives it to its domain.
    fn handle_bound(
        &mut self,
        (socket, mapping): (NewSocket, Option<IoMapping>),
        dev: u32,
        (rings, lasts): (RingExtents, bool),
        fds: &mut Fds,
    ) -> RequestResult {
        let (on, is_queue) = (socket.on, socket.frames_owner.is_some());
        let control = Arc::new(NetdSocket {
            netd: Arc::clone(&self.control),
            dev,
            must_end: is_queue || socket.is_pci,
            is_sound: AtomicBool::new(false),
            mapping: Mutex::new(mapping),
        });
        let bound = DevHandle::new(NetdRequest::AdoptSocket { on, dev, is_queue }, take(fds));
        self.devs.kept.insert(dev, bound);
        let memory = self.hypervisor.memory(socket.domain);
        let frames = memory.map(|memory| Arc::clone(&memory.frames));
        self.give_bound(BoundSocket {
            socket,
            rings,
            retained_frames: frames.filter(|_| lasts && !is_queue),
            control,
        })
    }

    /// Gives a domain a bound socket.
    fn give_bound(&mut self, bound: BoundSocket) -> RequestResult {
        let (socket, control) = (bound.socket, Arc::clone(&bound.control));
        self.umem(&socket)?;
        let kept = self.devs.kept.get(&control.dev);
        let (first, frames) = (socket.first_frame, socket.frames);
        let fds = kept.map_or(&[][..], |kept| &kept.fds);
        // For a PCI device, the domain receives the descriptor of the interrupt, and a mapping of
        // the registers.
        let (fd, mapped_fd) = match (socket.is_pci, fds) {
            (false, [socket, ..]) => (socket.try_clone()?, None),
            (true, [_, _, device, interrupt]) => {
                (interrupt.try_clone()?, Some(device.try_clone()?))
            }
            _ => return Err("netd has bound a device without passing its descriptors".into()),
        };
        let slots = match socket.is_pci {
            true => abi::pci::WINDOW_SLOTS,
            false => ring_slots(socket.entries),
        };
        let device = DomainDevice {
            fd,
            pages_fd: mapped_fd,
            control: Some(control),
            pages: device_maps(&bound.rings, socket.rings_slot, slots)?,
            pin: socket.frames_owner.map(|owner| Pin {
                owner,
                first,
                frames,
            }),
        };
        self.hypervisor.give_device(socket.domain, Some(device))?;
        if bound.retained_frames.is_some() {
            self.lasting.insert(socket.on, bound);
        }
        done()
    }
}

/// Returns the window slots of rings, each of at most `slots` pages, from slot `first` on.
fn device_maps(rings: &RingExtents, first: u32, slots: u32) -> Result<Vec<DeviceMap>, String> {
    let shown = rings.iter().filter(|ring| ring.pages > 0);
    let all = (0..).zip(shown).map(|(place, ring)| {
        let slot = slots.checked_mul(place)?.checked_add(first)?;
        (ring.pages <= slots).then_some(DeviceMap {
            slot: Slot(slot),
            page: ring.page,
            pages: ring.pages,
        })
    });
    let all: Option<_> = all.collect();
    all.ok_or_else(|| "the rings or registers of a device do not fit their slots".into())
}

#[cfg(test)]
mod tests;
