//! Devices, which netd opens: the core keeps duplicates of all that a device consists of, so that
//! the next netd takes it up, and hands domains their descriptors. What a device is, netd knows.
//!
//! A socket's way, which is the only one with several steps:
//!
//! ```text
//!   manager            core                          netd
//!   GiveSocket ──────► Socket ─────────────────────► makes one, over no memory
//!                      registers the domain's frames ◄── Made
//!                      Bind ───────────────────────► binds it, leads frames there
//!   Done ◄──────────── gives the domain the device ◄── Bound
//! ```

use super::Core;
use super::asks::{Answer, Refusal, beside, done, value};
use super::units::{Bound, Rings, SOCKETS, Unit, Waits, copies};
use crate::netd::{Socket, Tap};
use abi::core::{NewSocket, Outcome, Record, Stage, Task, Tell};
use abi::layout::ring_slots;
use abi::status::Program;
use abi::{DomId, PAGE, Slot};
use link::{Link, Received, sealed};
use monitor::{Device, DeviceMap, Left, Pin};
use shmem::Span;
use std::mem::take;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a refusal's words, or of what a system cannot provide.
const WORDS_MAX: usize = 64 << 10;
/// Entries that a socket's ring may have: what the kernel takes at most.
const ENTRIES_MAX: u32 = 1 << 16;

type Fds = Vec<OwnedFd>;

fn netd_is_away() -> Refusal {
    let why = "netd is being started again".into();
    Refusal { why, is_busy: true }
}

impl Core {
    /// A netd has started.
    pub(super) fn welcome_netd(&mut self) {
        let beside = Link::pair().and_then(|(ours, theirs)| {
            self.control.replace(Some(ours));
            Ok(vec![theirs.into(), self.machine.try_clone()?])
        });
        match beside.and_then(|beside| self.units.for_the_next(beside)) {
            Ok(tasks) => {
                for (token, task, beside) in tasks {
                    self.task(token, task, beside);
                }
            }
            Err(_) => self.netd.kill(),
        }
    }

    /// netd has ended: every ask that waits for it is answered so.
    pub(super) fn lose_netd(&mut self, now: u64) {
        self.control.replace(None);
        let mut left = self.netd.ended(now);
        let over = |_: &u32, (_, waits): &mut (u32, Waits)| !matches!(waits, Waits::Close(..));
        let over: Vec<_> = self.units.waiting.extract_if(.., over).collect();
        for (_, (token, mut waits)) in over {
            if let Waits::Closed(Some(closed_by)) = waits {
                self.answer(closed_by, done());
            }
            left.append(&mut waits.take_shown());
            self.answer(token, Err(netd_is_away()));
        }
        self.hypervisor.close(left);
    }

    /// Sees to what netd has done. Ends netd if it talks nonsense.
    pub(super) fn hear_netd(&mut self) {
        while let Some(Received { record, mut fds }) = self.netd.hear() {
            self.outcome(record, &mut fds);
            self.hypervisor.close(fds);
        }
    }

    /// Has netd begin with something that an ask waits for.
    fn begin(&mut self, token: u32, waits: Waits, task: Task, fds: Fds) -> Answer {
        if !self.netd.listens() {
            return Err(netd_is_away());
        }
        let begun = self.units.wait(token, waits);
        self.task(begun, task, fds);
        Ok(None)
    }

    /// Has netd open a device.
    pub(super) fn open(&mut self, token: u32, unit: u32, fds: Fds) -> Answer {
        if unit >= SOCKETS || self.units.kept.contains_key(&unit) {
            let why = format!("device {unit} is open already, or has no number of a device's");
            return Err(why.into());
        }
        let description = copies(fds.first().map(AsFd::as_fd).into_iter())?.pop();
        let waits = Waits::Open(unit, description);
        self.begin(token, waits, Task::Open { unit }, fds)
    }

    /// Closes a device, also one that netd is still opening: it does so before it closes it. A netd
    /// that ends before it has done so leaves it to the next one.
    pub(super) fn close(&mut self, token: u32, unit: u32) -> Answer {
        self.lasting.remove(&unit);
        // Until its socket has gone, too, a device has a name that the next one may want.
        self.close_left();
        let (is_opening, description) = self.units.close(token, unit);
        let opening = |by| Unit::new(Task::TakeUp { unit, given: 0 }, vec![by]);
        let mut left = self.units.kept.remove(&unit);
        for left in left.iter_mut().filter(|_| self.netd.listens()) {
            // netd may have died since, with its own: these are the last ones then.
            self.hypervisor.close(left.strip());
        }
        let left = left.or(description.map(opening));
        let task = self.units.wait(0, Waits::Close(unit, left));
        self.task(task, Task::Close { unit }, Vec::new());
        // netd answers for what it is still opening.
        Ok((!is_opening).then(Default::default))
    }

    /// Closes sockets that no domain has any more.
    pub(super) fn close_left(&mut self) {
        for unit in self.control.take_closed() {
            let _nobody_waits = self.close(0, unit);
        }
    }

    /// Gives a domain a descriptor of a device.
    pub(super) fn give(&mut self, domain: DomId, unit: u32, place: u32, told: bool) -> Answer {
        let open = self.units.kept.get(&unit);
        let fd = open.and_then(|unit| unit.given(place));
        let fd = fd.ok_or_else(|| format!("device {unit} has no descriptor {place}"))?;
        let device = Device {
            control: told.then(|| Tap::control(&self.control, unit)),
            ..fd.try_clone()?.into()
        };
        self.hypervisor.give_device(domain, Some(device))?;
        done()
    }

    /// Begins to give a domain a socket.
    pub(super) fn give_socket(&mut self, token: u32, socket: NewSocket, fds: Fds) -> Answer {
        if !(1..=ENTRIES_MAX).contains(&socket.entries) {
            return Err(format!("a ring of {} entries", socket.entries).into());
        }
        if socket.of.is_none()
            && let Some(bound) = self.lasting.remove(&socket.on)
        {
            // It was passed on: it is of use over the same frames.
            let memory = self.hypervisor.memory(socket.domain);
            let has = |left| memory.is_some_and(|memory| Arc::ptr_eq(&memory.frames, left));
            if bound.socket == socket && bound.lasts.as_ref().is_some_and(has) {
                return self.give_bound(bound);
            }
        }
        let unit = self.units.next_socket();
        let (on, is_queue) = (socket.on, socket.of.is_some());
        let task = Task::Socket { on, unit, is_queue };
        self.begin(token, Waits::Make(socket, unit), task, fds)
    }

    /// netd has done something, or not. What nobody wants is left of `fds`.
    fn outcome(&mut self, record: Record<Outcome>, fds: &mut Fds) {
        if let Outcome::Lost { unit, is_removed } = record.message {
            // What was closed meanwhile has no owner, and its number may be another one's soon.
            if let Some(open) = self.units.kept.get_mut(&unit)
                && open.lost.replace(is_removed) != Some(is_removed)
            {
                self.tell(0, Tell::Lost { unit, is_removed }, Vec::new());
            }
            return;
        }
        // An outcome that no ask waits for is dropped.
        let Some((token, mut waits)) = self.units.waiting.remove(&record.token) else {
            return;
        };
        fds.splice(..0, waits.take_shown());
        let answer = match (record.message, waits) {
            (_, Waits::Close(..)) => return,
            (_, Waits::Closed(closed_by)) => {
                if let Some(closed_by) = closed_by {
                    self.answer(closed_by, done());
                }
                Err("it was closed meanwhile".into())
            }
            (Outcome::Refused { is_busy }, _) => {
                let why = fds.last().and_then(|fd| sealed::read(fd, WORDS_MAX).ok());
                let why = why.unwrap_or_else(|| "for no reason that can be read".into());
                let why = String::from_utf8_lossy(&why).into_owned();
                Err(Refusal { why, is_busy })
            }
            (Outcome::Opened { given }, Waits::Open(unit, _)) => self.opened(unit, given, fds),
            (Outcome::Made {}, Waits::Make(socket, unit)) => self.made(token, socket, unit, fds),
            (Outcome::Bound { rings, lasts }, Waits::Bind(socket, unit, _)) => {
                self.bound(socket, unit, (rings, lasts), fds)
            }
            _ => Err("netd has answered something else".into()),
        };
        self.answer(token, answer);
    }

    fn opened(&mut self, unit: u32, given: u32, fds: &mut Fds) -> Answer {
        if fds.len() < 2 || given as usize > fds.len() - 2 {
            return Err("netd has opened a device and not shown it".into());
        }
        sealed::check(&fds[1], WORDS_MAX)?;
        let lacks = fds.remove(1);
        let open = Unit::new(Task::TakeUp { unit, given }, take(fds));
        self.units.kept.insert(unit, open);
        value(given.into(), vec![lacks])
    }

    /// The frames of a dead driver domain with whose sockets the next one can go on.
    pub(super) fn left_by(&self, dead: DomId) -> Left {
        let is_driver = self.hypervisor.domain(dead)?.spec.program == Program::Driver;
        let mut all = self.lasting.values();
        let bound = all.find(|bound| bound.socket.domain == dead && is_driver)?;
        bound.lasts.clone()
    }

    /// Its sockets are the next one's, and never another's.
    pub(super) fn pass_on(&mut self, dead: DomId, next: DomId) {
        let all = self.lasting.values_mut();
        for bound in all.filter(|bound| bound.socket.domain == dead) {
            bound.socket.domain = next;
            bound.control.is_sound.store(false, Ordering::Relaxed);
        }
    }

    /// The frames that a socket is over.
    fn umem(&self, socket: &NewSocket) -> Result<Span, Refusal> {
        let domain = self.hypervisor.domain(socket.domain);
        let built = domain.is_some_and(|domain| domain.life.stage == Stage::Built);
        let of = socket.of.unwrap_or(socket.domain);
        let memory = self.hypervisor.memory(of).filter(|_| built);
        let memory = memory.ok_or("the domain is not there any more")?;
        let bytes = |pages: u32| pages as usize * PAGE;
        let umem = memory.frames.span();
        let umem = umem.sub(bytes(socket.first_frame), bytes(socket.frames));
        umem.ok_or_else(|| "an AF_XDP socket over frames that the domain does not have".into())
    }

    /// A socket is there: its memory is registered, and it is bound next.
    fn made(&mut self, token: u32, socket: NewSocket, unit: u32, fds: &mut Fds) -> Answer {
        if let Err(refusal) = self.register(&socket, fds) {
            self.task(0, Task::Close { unit }, Vec::new());
            return Err(refusal);
        }
        let waits = Waits::Bind(socket, unit, take(fds));
        self.begin(token, waits, Task::Bind { unit }, Vec::new())
    }

    fn register(&self, socket: &NewSocket, fds: &[OwnedFd]) -> Result<(), Refusal> {
        let umem = shmem::umem::Umem {
            span: self.umem(socket)?,
            chunk_bytes: socket.chunk_bytes,
            entries: socket.entries,
            // Of another domain's memory nothing is ever sent.
            transmits: socket.of.is_none(),
        };
        let registered = shmem::umem::register(beside(fds)?, &umem);
        Ok(registered.map_err(|e| format!("the memory of an AF_XDP socket: {e}"))?)
    }

    /// A socket is bound: it is the domain's.
    fn bound(
        &mut self,
        socket: NewSocket,
        unit: u32,
        (rings, lasts): (Rings, bool),
        fds: &mut Fds,
    ) -> Answer {
        let (on, is_queue) = (socket.on, socket.of.is_some());
        let control = Arc::new(Socket {
            netd: Arc::clone(&self.control),
            unit,
            is_queue,
            is_sound: AtomicBool::new(false),
        });
        let bound = Unit::new(Task::TakeUpSocket { on, unit, is_queue }, take(fds));
        self.units.kept.insert(unit, bound);
        let memory = self.hypervisor.memory(socket.domain);
        let frames = memory.map(|memory| Arc::clone(&memory.frames));
        self.give_bound(Bound {
            socket,
            rings,
            lasts: frames.filter(|_| lasts && !is_queue),
            control,
        })
    }

    /// Gives a domain a socket that is bound.
    fn give_bound(&mut self, bound: Bound) -> Answer {
        let (socket, control) = (bound.socket, Arc::clone(&bound.control));
        self.umem(&socket)?;
        let kept = self.units.kept.get(&control.unit);
        let (first, frames) = (socket.first_frame, socket.frames);
        let device = Device {
            fd: beside(kept.map_or(&[], |unit| &unit.fds))?.try_clone()?,
            control: Some(control),
            pages: places(&bound.rings, socket.rings_slot, socket.entries)?,
            pin: socket.of.map(|of| Pin { of, first, frames }),
        };
        self.hypervisor.give_device(socket.domain, Some(device))?;
        if bound.lasts.is_some() {
            self.lasting.insert(socket.on, bound);
        }
        done()
    }
}

/// Where the parts of rings of `entries` entries lie in the window, from slot `first` on.
fn places(rings: &Rings, first: u32, entries: u32) -> Result<Vec<DeviceMap>, String> {
    let slots = ring_slots(entries);
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
    all.ok_or_else(|| "this kernel's AF_XDP rings do not fit their slots".into())
}

#[cfg(test)]
mod tests;
