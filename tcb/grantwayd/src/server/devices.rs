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

use super::asks::{Answer, Refusal, beside};
use super::units::{Bound, Making, SOCKETS, Unit, Waits};
use super::{Core, Peer, copies, hear};
use crate::netd::{Socket, Tap};
use abi::core::{Outcome, RingPlace, Task, Tell, Umem};
use abi::layout::ring_slots;
use abi::{DomId, PAGE, Slot};
use link::{Link, Received, sealed};
use monitor::{Device, DeviceMap, Life, Pin};
use shmem::Span;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a refusal's words, or of what a system cannot provide.
const WORDS_MAX: usize = 64 << 10;
/// Entries that a socket's ring may have: what the kernel takes at most.
const ENTRIES_MAX: u32 = 1 << 16;

fn netd_is_away() -> Refusal {
    let why = "netd is being started again".into();
    Refusal { why, is_busy: true }
}

impl Core {
    /// A netd has started: it takes up what the one before had.
    pub(super) fn welcome_netd(&mut self, link: Link) {
        self.to_netd = Some(Peer::new(link));
        let beside = Link::pair().and_then(|(ours, theirs)| {
            self.control.replace(Some(ours));
            Ok(vec![theirs.into(), self.machine.try_clone()?])
        });
        let mut tasks = vec![(Task::Welcome {}, beside)];
        for (&unit, open) in &self.units.open {
            let given = open.given.len() as u32;
            let all = [&open.state]
                .into_iter()
                .chain(&open.given)
                .chain(&open.rest);
            tasks.push((Task::TakeUp { unit, given }, copies(all.map(AsFd::as_fd))));
        }
        for (&unit, socket) in &self.units.bound {
            let &Bound { on, is_queue, .. } = socket;
            let task = Task::TakeUpSocket { on, unit, is_queue };
            tasks.push((task, copies(socket.kept.iter().map(AsFd::as_fd))));
        }
        for (task, beside) in tasks {
            match beside {
                Ok(beside) => self.task(0, task, beside),
                Err(_) => return self.netd.kill(),
            }
        }
    }

    /// netd has ended: every ask that waits for it is answered so.
    pub(super) fn lose_netd(&mut self, now: u64) {
        self.to_netd = None;
        self.control.replace(None);
        self.netd.ended(now);
        for token in self.units.take_all() {
            self.answer(token, Err(netd_is_away()));
        }
    }

    /// Sees to what netd has done. Ends netd if it talks nonsense.
    pub(super) fn hear_netd(&mut self) {
        while let Some(received) = hear(&mut self.to_netd, &self.netd) {
            self.outcome(received);
        }
    }

    /// Has netd open a device.
    pub(super) fn open(&mut self, token: u32, unit: u32, fds: Vec<OwnedFd>) {
        if unit >= SOCKETS || self.units.open.contains_key(&unit) {
            let why = format!("device {unit} is open already, or has no number of a device's");
            return self.answer(token, Err(why.into()));
        }
        if self.to_netd.is_none() {
            return self.answer(token, Err(netd_is_away()));
        }
        if let Some((token, unit, fds)) = self.units.hold_back((token, unit, fds)) {
            let task = self.units.wait(token, Waits::Open { unit });
            self.task(task, Task::Open { unit }, fds);
        }
    }

    /// Closes a device, also one that netd is still opening: it does so before it closes it.
    pub(super) fn close(&mut self, unit: u32) {
        self.units.forget(unit);
        self.task(0, Task::Close { unit }, Vec::new());
        for token in self.units.take_opening(unit) {
            self.answer(token, Err("it was closed meanwhile".into()));
        }
    }

    /// Gives a domain a descriptor of a device.
    pub(super) fn give(&mut self, domain: DomId, unit: u32, place: u32, told: bool) -> Answer {
        let given = self.units.open.get(&unit);
        let fd = given.and_then(|unit| unit.given.get(place as usize));
        let fd = fd.ok_or_else(|| format!("device {unit} has no descriptor {place}"))?;
        let device = Device {
            control: told.then(|| Tap::control(&self.control, unit)),
            ..fd.try_clone()?.into()
        };
        self.hypervisor.give_devices(domain, vec![Some(device)])?;
        Ok((0, Vec::new()))
    }

    /// Begins to give a domain a socket.
    pub(super) fn give_socket(
        &mut self,
        token: u32,
        (domain, on): (DomId, u32),
        umem: Umem,
        rings_slot: u32,
        fds: Vec<OwnedFd>,
    ) {
        if self.to_netd.is_none() {
            return self.answer(token, Err(netd_is_away()));
        }
        if umem.entries == 0 || umem.entries > ENTRIES_MAX {
            let why = format!("a ring of {} entries", umem.entries);
            return self.answer(token, Err(why.into()));
        }
        let unit = SOCKETS | self.units.sockets;
        self.units.sockets = self.units.sockets.wrapping_add(1) & (SOCKETS - 1);
        let is_queue = umem.of.is_some();
        let making = Making {
            domain,
            on,
            unit,
            is_queue,
            umem,
            rings_slot,
        };
        let task = self.units.wait(token, Waits::Make(making));
        self.task(task, Task::Socket { on, unit, is_queue }, fds);
    }

    /// netd has done something, or not.
    fn outcome(&mut self, received: Received<Outcome>) {
        let Received { record, fds } = received;
        if let Outcome::Lost { unit } = record.message {
            // What was closed meanwhile has no owner, and its number may be another one's soon.
            if self.units.open.contains_key(&unit) && self.units.lost.insert(unit) {
                self.tell(0, Tell::Lost { unit }, Vec::new());
            }
            return;
        }
        let waiting = self.units.waiting.remove(&record.token);
        // An outcome that no ask waits for is dropped.
        let Some((token, waits)) = waiting else {
            return;
        };
        if let Waits::Closed = waits {
            drop(fds);
            for (token, unit, fds) in self.units.release() {
                self.open(token, unit, fds);
            }
            return;
        }
        let answer = match (record.message, waits) {
            (Outcome::Refused { is_busy }, _) => {
                let why = beside(&fds).and_then(|fd| Ok(sealed::read(fd, WORDS_MAX)?));
                let why = why.unwrap_or_else(|refusal| refusal.why.into_bytes());
                let why = String::from_utf8_lossy(&why).into_owned();
                Err(Refusal { why, is_busy })
            }
            (Outcome::Opened { given }, Waits::Open { unit }) => self.opened(unit, given, fds),
            (Outcome::Made {}, Waits::Make(making)) => match self.made(token, making, fds) {
                Ok(()) => return,
                Err(refusal) => Err(refusal),
            },
            (Outcome::Bound { rings }, Waits::Bind(making, mut kept)) => {
                kept.extend(fds);
                self.bound(making, rings, kept)
            }
            _ => Err("netd has answered something else".into()),
        };
        self.answer(token, answer);
    }

    fn opened(&mut self, unit: u32, given: u32, mut fds: Vec<OwnedFd>) -> Answer {
        let given = given as usize;
        if fds.len() < 2 || given > fds.len() - 2 {
            return Err("netd has opened a device and not shown it".into());
        }
        let rest = fds.split_off(2 + given);
        let of_domains = fds.split_off(2);
        let [state, lacks] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| "netd has not shown it")?;
        let lacks = sealed::read(&lacks, WORDS_MAX)?;
        let open = Unit {
            given: of_domains,
            state,
            rest,
        };
        self.units.open.insert(unit, open);
        Ok((given as u64, vec![sealed::write("lacks", &lacks)?]))
    }

    /// The frames that a socket is over.
    fn umem(&self, making: &Making) -> Result<Span, Refusal> {
        let built = matches!(self.hypervisor.life(making.domain), Some(Life::Built));
        let of = making.umem.of.unwrap_or(making.domain);
        let memory = self.hypervisor.memory(of).filter(|_| built);
        let memory = memory.ok_or("the domain is not there any more")?;
        let bytes = |pages: u32| pages as usize * PAGE;
        let umem = memory
            .frames()
            .span()
            .sub(bytes(making.umem.first_frame), bytes(making.umem.frames));
        umem.ok_or_else(|| "an AF_XDP socket over frames that the domain does not have".into())
    }

    /// A socket is there: its memory is registered, and it is bound next.
    fn made(&mut self, token: u32, making: Making, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let registered = self.register(&making, &fds);
        if let Err(refusal) = registered {
            let unit = making.unit;
            self.task(0, Task::Close { unit }, Vec::new());
            return Err(refusal);
        }
        let unit = making.unit;
        let task = self.units.wait(token, Waits::Bind(making, fds));
        self.task(task, Task::Bind { unit }, Vec::new());
        Ok(())
    }

    fn register(&self, making: &Making, fds: &[OwnedFd]) -> Result<(), Refusal> {
        let umem = shmem::umem::Umem {
            span: self.umem(making)?,
            chunk_bytes: making.umem.chunk_bytes,
            entries: making.umem.entries,
            // Of another domain's memory nothing is ever sent.
            transmits: !making.is_queue,
        };
        let registered = shmem::umem::register(beside(fds)?, &umem);
        Ok(registered.map_err(|e| format!("the memory of an AF_XDP socket: {e}"))?)
    }

    /// A socket is bound: it is the domain's.
    fn bound(&mut self, making: Making, rings: [RingPlace; 4], kept: Vec<OwnedFd>) -> Answer {
        let unit = making.unit;
        // From here on netd forgets the socket when nobody has the control any more.
        let control = Arc::new(Socket {
            netd: Arc::clone(&self.control),
            unit,
            is_queue: making.is_queue,
        });
        self.umem(&making)?;
        let device = Device {
            fd: beside(&kept)?.try_clone()?,
            control: Some(control),
            pages: places(&rings, making.rings_slot, making.umem.entries)?,
            pin: making.umem.of.map(|of| Pin {
                of,
                first: making.umem.first_frame,
                frames: making.umem.frames,
            }),
        };
        let &Making { on, is_queue, .. } = &making;
        self.units.bound.insert(unit, Bound { on, is_queue, kept });
        self.hypervisor
            .give_devices(making.domain, vec![Some(device)])?;
        Ok((0, Vec::new()))
    }
}

/// Where the parts of rings of `entries` entries lie in the window, from slot `first` on.
fn places(rings: &[RingPlace; 4], first: u32, entries: u32) -> Result<Vec<DeviceMap>, String> {
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
mod tests {
    use super::*;

    #[test]
    fn rings_that_do_not_fit_their_slots_are_refused() {
        let ring = |pages| RingPlace { page: 5, pages };
        let slots = ring_slots(512);
        let places = |rings, first| places(&rings, first, 512);
        let found = places([ring(1), ring(0), ring(slots), ring(0)], 7).unwrap();
        let slot = |n: usize| (found[n].slot.0, found[n].pages);
        assert_eq!(
            (found.len(), slot(0), slot(1)),
            (2, (7, 1), (7 + slots, slots))
        );
        assert!(places([ring(slots + 1); 4], 0).is_err());
        assert!(places([ring(1); 4], u32::MAX - 1).is_err());
    }
}
