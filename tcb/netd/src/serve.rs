//! The core's tasks, one after another.

use crate::broker::Broker;
use crate::places::{self, Places};
use crate::told::{self, Units};
use crate::unit::{self, Opened, Refusal, Unit};
use abi::core::{Outcome, Record, Task};
use abi::machine::{Device, OpenedNotes, Opening, XdpQueue};
use link::{Link, LinkError, Received, sealed};
use netdev::netns;
use rustix::event::PollFlags;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// Bytes that a description may have: of a queue with all its rules.
const DESCRIPTION_MAX: usize = 16 << 20;

/// What is answered: a record, and descriptors of our own beside it.
type Answer = Result<(Outcome, Vec<OwnedFd>), Refusal>;

struct Serve {
    link: Link,
    units: Units,
    broker: Arc<Broker>,
    places: Places,
    /// Devices whose interface was removed, and which the core knows of.
    removed: BTreeSet<u32>,
    /// When interfaces were last looked for that no descriptor tells of.
    looked: Instant,
    missing: Vec<String>,
    /// Closes what was closed.
    closing: Vec<JoinHandle<()>>,
}

/// Serves until the core is gone, or nothing good comes from it any more.
pub(crate) fn run(link: Link, broker: Arc<Broker>, missing: Vec<String>) -> Result<(), String> {
    Serve::new(link, broker, missing).run()
}

impl Serve {
    fn new(link: Link, broker: Arc<Broker>, missing: Vec<String>) -> Self {
        Self {
            link,
            units: Units::default(),
            broker,
            places: Places::default(),
            removed: BTreeSet::new(),
            looked: Instant::now(),
            missing,
            closing: Vec::new(),
        }
    }

    fn run(mut self) -> Result<(), String> {
        let why = loop {
            if let Err(error) = self.turn() {
                break error;
            }
        };
        // What does not go with descriptors: nobody else clears it away.
        self.units.lock().clear();
        match why {
            LinkError::Closed => Ok(()),
            why => Err(format!("the link to the core: {why}")),
        }
    }

    fn turn(&mut self) -> Result<(), LinkError> {
        for unit in self.places.lost(&self.broker) {
            self.lose(unit, false)?;
        }
        for unit in self.look_for_wires() {
            self.lose(unit, true)?;
        }
        let Some(received) = self.link.receive::<Task>()? else {
            for unit in self.wait() {
                self.lose(unit, self.places.is_there(unit, &self.broker))?;
            }
            return Ok(());
        };
        let token = received.record.token;
        let answer = self.task(received);
        // Token 0: no answer is wanted.
        if token == 0 {
            if let Err(refusal) = answer {
                eprintln!("grantway-netd: {}", refusal.why);
            }
            return Ok(());
        }
        let (message, fds) = match answer {
            Ok(answer) => answer,
            Err(Refusal { why, is_busy }) => {
                let why = sealed::write("why", why.as_bytes())?;
                (Outcome::Refused { is_busy }, vec![why])
            }
        };
        let beside: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.send(&Record { token, message }, &beside)
    }

    /// Tells the core that a device is of no use any more.
    fn lose(&mut self, unit: u32, is_removed: bool) -> Result<(), LinkError> {
        self.removed.insert(unit);
        let message = Outcome::Lost { unit, is_removed };
        self.send(&Record { token: 0, message }, &[])
    }

    /// Waits for a task, for the next look at namespaces and wires, or until TAPs are removed.
    /// Returns these.
    fn wait(&self) -> Vec<u32> {
        let units = self.units.lock().clone();
        let watched = units
            .iter()
            .filter(|(unit, _)| !self.removed.contains(unit));
        let watched = watched.filter_map(|(unit, of)| Some((Some(*unit), of.watched()?)));
        // No event is asked for: the kernel reports errors all the same.
        let watched = watched.map(|(unit, fd)| (unit, fd, PollFlags::empty()));
        let mut sources = vec![(None, self.link.as_fd(), PollFlags::IN)];
        sources.extend(watched);
        let has_wires = units.values().any(|of| matches!(**of, Unit::Wire(_)));
        let wires = has_wires.then(|| places::LOOK.saturating_sub(self.looked.elapsed()));
        let wait = self.places.wait().into_iter().chain(wires).min();
        let ready = link::wait_for(&sources, wait.map(|wait| wait.as_nanos() as u64));
        ready.into_iter().flatten().collect()
    }

    /// Returns the wires whose interfaces were removed since the last look, if it is time for one.
    fn look_for_wires(&mut self) -> Vec<u32> {
        if self.looked.elapsed() < places::LOOK {
            return Vec::new();
        }
        self.looked = Instant::now();
        let units = self.units.lock().clone();
        let known = units
            .iter()
            .filter(|(unit, _)| !self.removed.contains(unit));
        let removed = known.filter(|(_, of)| of.is_removed());
        removed.map(|(unit, _)| *unit).collect()
    }

    /// The core takes what is sent: it is waited for.
    fn send(&self, record: &Record<Outcome>, fds: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
        loop {
            let Err(error) = self.link.send(record, fds) else {
                return Ok(());
            };
            match error.kind() {
                io::ErrorKind::WouldBlock => self.link.wait(PollFlags::OUT, None),
                io::ErrorKind::BrokenPipe => return Err(LinkError::Closed),
                _ => return Err(error.into()),
            }
        }
    }

    fn task(&mut self, received: Received<Task>) -> Answer {
        let fds = received.fds;
        match received.record.message {
            Task::Welcome {} => {
                let [told, machine] = parts(fds)?;
                self.broker.welcome(&machine)?;
                told::start(told.into(), self.units.clone())?;
                done()
            }
            Task::Open { unit } => self.open(unit, fds),
            Task::TakeUp { unit, given } => {
                self.insert(unit, Unit::Stuck);
                let [description] = parts_of(&fds)?;
                let opening = opening(description)?;
                self.note_place(unit, &opening);
                let mut fds = fds.into_iter().skip(1);
                let given = fds.by_ref().take(given as usize).collect();
                self.insert(unit, unit::take_up(&opening, given, fds.collect())?);
                done()
            }
            Task::Close { unit } => {
                self.places.remove(unit);
                self.removed.remove(&unit);
                let closed = self.units.lock().remove(&unit);
                if let (None | Some(Unit::Stuck), Some(by)) = (closed.as_deref(), fds.first()) {
                    unit::remove(&opening(by)?);
                }
                closed.iter().for_each(|unit| unit.release());
                // Outside the lock: to close a socket or an interface may take long.
                self.closing.retain(|thread| !thread.is_finished());
                // Who closes an interface waits on when its name is free already: what is opened
                // next does not. Without a thread it is closed here.
                if closed.as_ref().is_some_and(|unit| unit.is_alone()) {
                    let thread = std::thread::Builder::new().spawn(|| drop(closed));
                    self.closing.extend(thread);
                }
                done()
            }
            Task::Socket { on, unit, is_queue } => self.socket((on, unit), is_queue, fds),
            Task::Bind { unit } => self.bind(unit),
            Task::TakeUpSocket { on, unit, is_queue } => {
                // Of a device that was closed no frame comes to a queue any more.
                let device = self.device(on)?;
                self.insert(unit, Unit::Stuck);
                let mut fds = fds.into_iter();
                let (Some(socket), Some(description)) = (fds.next(), fds.next()) else {
                    return Err("a socket without a descriptor".to_owned().into());
                };
                let queue = queue(is_queue, &description)?;
                let taken = device.take_up_socket(queue, socket, fds.collect())?;
                self.insert(unit, taken);
                done()
            }
            Task::Control { .. } | Task::End { .. } => {
                Err("domains' words come by another link".to_owned().into())
            }
        }
    }

    fn insert(&self, number: u32, unit: Unit) {
        self.units.lock().insert(number, Arc::new(unit));
    }

    /// Whether the namespace is there that a device was made in is looked at from now on.
    fn note_place(&mut self, unit: u32, opening: &Opening) {
        if let (Some(name), Some(identity)) = (namespace(&opening.device), opening.namespace) {
            self.places.insert(unit, name, identity);
        }
    }

    fn device(&self, unit: u32) -> Result<Arc<Unit>, Refusal> {
        let found = self.units.get(unit);
        found.ok_or_else(|| format!("device {unit} is not open").into())
    }

    /// Beside the answer: the description, what is lacking, descriptors for domains, and what the
    /// next netd needs.
    fn open(&mut self, number: u32, fds: Vec<OwnedFd>) -> Answer {
        let [description] = parts(fds)?;
        let mut opening = opening(&description)?;
        let place = match namespace(&opening.device) {
            Some(name) => self.broker.places(&[&netns::path(name)])?.pop().flatten(),
            None => None,
        };
        if opening.expected.is_some() && opening.expected != place {
            let why = "its network namespace is not there any more";
            return Err(why.to_owned().into());
        }
        opening.namespace = place.map(|[device, inode, _]| [device, inode]);
        let mut opened = unit::open(&opening, &self.broker);
        if opened.is_err() && !self.closing.is_empty() {
            // What is in its way may be about to go.
            self.closing
                .drain(..)
                .for_each(|thread| drop(thread.join()));
            opened = unit::open(&opening, &self.broker);
        }
        let Opened { unit, given, lacks } = opened?;
        opening.switched_on = unit.switched_on();
        self.note_place(number, &opening);
        let description = serde_json::to_vec(&opening).map_err(|e| e.to_string())?;
        let description = sealed::write("device", &description)?;
        let lacks = lacks.iter().map(|lack| (*lack).to_owned());
        let lacks = self.missing.iter().cloned().chain(lacks).collect();
        let notes = OpenedNotes { lacks, place };
        let notes = serde_json::to_vec(&notes).map_err(|e| e.to_string())?;
        let mut beside = vec![description, sealed::write("notes", &notes)?];
        let count = given.len() as u32;
        beside.extend(given);
        for fd in unit.kept() {
            beside.push(fd.try_clone_to_owned()?);
        }
        if !matches!(unit, Unit::File) {
            self.insert(number, unit);
        }
        Ok((Outcome::Opened { given: count }, beside))
    }

    fn socket(&mut self, (on, number): (u32, u32), is_queue: bool, fds: Vec<OwnedFd>) -> Answer {
        let description = match fds.into_iter().next() {
            Some(description) => description,
            None => sealed::write("none", b"")?,
        };
        let unbound = self.device(on)?.socket(queue(is_queue, &description)?)?;
        let socket = unbound.unbound().map(|fd| fd.try_clone_to_owned());
        let socket = socket.ok_or_else(|| "no socket was made".to_owned())??;
        self.insert(number, unbound);
        Ok((Outcome::Made {}, vec![socket, description]))
    }

    fn bind(&mut self, number: u32) -> Answer {
        let unbound = self.units.lock().remove(&number).and_then(Arc::into_inner);
        let unbound = unbound.ok_or_else(|| format!("there is no socket {number} to bind"))?;
        let bound = unbound.bind()?;
        let (rings, lasts) = (bound.rings(), bound.lasts());
        let kept: io::Result<Vec<_>> = bound
            .kept()
            .into_iter()
            .map(|fd| fd.try_clone_to_owned())
            .collect();
        let kept = kept?;
        self.insert(number, bound);
        Ok((Outcome::Bound { rings, lasts }, kept))
    }
}

/// The namespace that a TAP is in.
fn namespace(device: &Device) -> Option<&str> {
    match device {
        Device::Tap(tap) => tap.netns.as_deref(),
        _ => None,
    }
}

fn done() -> Answer {
    Ok((Outcome::Made {}, Vec::new()))
}

/// Exactly these descriptors.
fn parts<const N: usize>(fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], Refusal> {
    let count = fds.len();
    <[OwnedFd; N]>::try_from(fds).map_err(|_| format!("{count} descriptors instead of {N}").into())
}

/// The first of these descriptors.
fn parts_of<const N: usize>(fds: &[OwnedFd]) -> Result<&[OwnedFd; N], Refusal> {
    fds.first_chunk()
        .ok_or_else(|| format!("{} descriptors instead of {N}", fds.len()).into())
}

fn opening(description: &OwnedFd) -> Result<Opening, Refusal> {
    let text = sealed::read(description, DESCRIPTION_MAX)?;
    serde_json::from_slice(&text).map_err(|e| format!("no description of a device: {e}").into())
}

/// The queue that a description describes, if it is to be one.
fn queue(is_queue: bool, description: &OwnedFd) -> Result<Option<XdpQueue>, Refusal> {
    match is_queue.then(|| opening(description)).transpose()? {
        None => Ok(None),
        Some(Opening {
            device: Device::XdpQueue(queue),
            ..
        }) => Ok(Some(queue)),
        Some(_) => Err("the description is not that of a queue".to_owned().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::core::BYTES;

    #[test]
    fn what_cannot_be_taken_up_is_known_as_that() {
        let (link, _core) = Link::pair().unwrap();
        let mut serve = Serve::new(link, Arc::new(Broker::in_a_thread()), Vec::new());
        let mut task = |message| {
            let record = Record { token: 0, message };
            serve
                .task(Received {
                    record,
                    fds: Vec::new(),
                })
                .unwrap_err();
            let all = serve.units.lock();
            all.iter()
                .map(|(unit, of)| (*unit, matches!(**of, Unit::Stuck)))
                .collect::<Vec<_>>()
        };
        let queue = |on, unit| Task::TakeUpSocket {
            on,
            unit,
            is_queue: true,
        };
        assert_eq!(task(queue(1, 2)), [], "there is no wire");
        assert_eq!(task(Task::TakeUp { unit: 1, given: 0 }), [(1, true)]);
        assert_eq!(task(queue(1, 2)), [(1, true), (2, true)]);
    }

    /// What does not go with descriptors would stay.
    #[test]
    fn however_the_link_ends_devices_are_cleared_away() {
        let task = |core: Link| {
            let (token, message) = (1, Task::Open { unit: 2 });
            core.send(&Record { token, message }, &[]).unwrap();
        };
        let ended = |core_ends: fn(Link)| {
            let (link, core) = Link::pair().unwrap();
            let serve = Serve::new(link, Arc::new(Broker::in_a_thread()), Vec::new());
            let units = serve.units.clone();
            units.lock().insert(1, Arc::new(Unit::Stuck));
            core_ends(core);
            let ended = serve.run();
            assert!(units.lock().is_empty(), "{ended:?}");
            ended
        };
        assert_eq!(ended(drop), Ok(()));
        assert_eq!(ended(task), Ok(()), "while a task was answered");
        let nonsense = ended(|core| core.send_bytes(&[0xff; BYTES], &[]).unwrap());
        assert!(nonsense.unwrap_err().contains("the link to the core"));
    }
}
