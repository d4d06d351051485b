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
        if let Outcome::Lost { unit } = record.message {
            // What was closed meanwhile has no owner, and its number may be another one's soon.
            if let Some(open) = self.units.kept.get_mut(&unit)
                && !std::mem::replace(&mut open.is_lost, true)
            {
                self.tell(0, Tell::Lost { unit }, Vec::new());
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
mod tests {
    use super::*;
    use crate::args::Args;
    use crate::child::Helper;
    use abi::core::{CPU_WORDS, NewDomain, RingPlace, Text};
    use abi::xdp::XdpControl;
    use monitor::{DeviceControl, Hypervisor};
    use rustix::net::sockopt::set_socket_linger;
    use shmem::Region;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::time::{Duration, Instant};
    use testing::PATIENCE;

    fn core() -> Core {
        let args = Args {
            state: None,
            beside: "/nowhere".into(),
            programs: "/nowhere".into(),
            with_reader: false,
            of_manager: Vec::new(),
        };
        let (signals, _signal) = UnixStream::pair().unwrap();
        let hypervisor = Hypervisor::new(None).unwrap();
        Core::new(hypervisor, args, signals, 0).unwrap()
    }

    /// The last descriptor of a device may take long to close: the next netd does it.
    #[test]
    fn what_is_closed_while_netd_is_away_is_not_closed_here() {
        let mut core = core();
        let (mut other_end, end) = UnixStream::pair().unwrap();
        other_end.set_nonblocking(true).unwrap();
        let state = sealed::write("device", b"").unwrap();
        let device = Unit::new(Task::TakeUp { unit: 1, given: 1 }, vec![state, end.into()]);
        core.units.kept.insert(1, device);
        core.close(0, 1).unwrap();
        assert!(!core.units.knows(1) && core.units.is_any_closing());
        let error = other_end.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "it is open");
    }

    /// A descriptor whose closing takes a minute, or until the other end is dropped: nobody reads
    /// what was sent by it.
    fn slow() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        one.set_nonblocking(true).unwrap();
        while (&one).write(&[0; 1 << 16]).is_ok() {}
        one.set_nonblocking(false).unwrap();
        set_socket_linger(&one, Some(Duration::from_secs(60))).unwrap();
        (one.into(), other)
    }

    /// What was sent by it comes, and after it the end, as soon as it is closed.
    fn is_closed(mut other: TcpStream) {
        other.set_read_timeout(Some(10 * PATIENCE)).unwrap();
        let end = std::io::copy(&mut other, &mut std::io::sink());
        assert!(end.is_ok(), "it is open: {end:?}");
    }

    /// Each is the last one: netd is dead, which was not seen yet.
    #[test]
    fn what_closes_slowly_is_not_waited_for() {
        let mut core = core();
        core.netd = Helper::new(Path::new("/bin"), "true", None);
        core.netd.start(0).unwrap();
        let (fds, others): (Vec<_>, Vec<_>) = [(); 5].map(|()| slow()).into_iter().unzip();
        let [of_device, opened, unwanted, refused, of_socket] = fds.try_into().unwrap();
        let began = Instant::now();
        let state = sealed::write("device", b"").unwrap();
        let device = Unit::new(Task::TakeUp { unit: 1, given: 1 }, vec![state, of_device]);
        core.units.kept.insert(1, device);
        assert!(core.netd.listens());
        core.close(0, 1).unwrap();
        let socket = NewSocket {
            domain: DomId(1),
            on: 2,
            of: None,
            first_frame: 0,
            frames: 1,
            chunk_bytes: 2048,
            entries: 64,
            rings_slot: 0,
        };
        let said = |core: &mut Core, waits: Option<Waits>, message: Outcome, fd: OwnedFd| {
            let token = waits.map_or(u32::MAX, |waits| core.units.wait(0, waits));
            let mut fds = vec![fd];
            core.outcome(Record { token, message }, &mut fds);
            core.hypervisor.close(fds);
        };
        let message = || Outcome::Opened { given: 0 };
        said(&mut core, Some(Waits::Closed(None)), message(), opened);
        said(&mut core, None, message(), unwanted);
        let waits = Waits::Bind(socket, SOCKETS, vec![refused]);
        let why = sealed::write("why", b"so").unwrap();
        said(
            &mut core,
            Some(waits),
            Outcome::Refused { is_busy: false },
            why,
        );
        core.units
            .wait(0, Waits::Bind(socket, SOCKETS, vec![of_socket]));
        core.lose_netd(0);
        assert!(began.elapsed() < Duration::from_secs(30), "it has waited");
        others.into_iter().for_each(is_closed);
    }

    fn new_domain(replaces: Option<DomId>, program: Program) -> NewDomain {
        NewDomain {
            replaces,
            name: Text::cut("d"),
            program,
            frames: 4,
            grant_entries: 0,
            window_slots: 64,
            collateral: 0,
            weight: 1,
            devices: 1,
            cpus: [0; CPU_WORDS],
            tsc_hz: 0,
        }
    }

    /// A machine with a domain of this program that has a socket on device 1.
    fn with_socket(program: Program) -> (Core, DomId) {
        let mut core = core();
        let first = created(&mut core, None, program);
        let (on, unit, is_queue) = (1, SOCKETS, false);
        let task = Task::TakeUpSocket { on, unit, is_queue };
        let file = sealed::write("socket", b"").unwrap();
        core.units.kept.insert(unit, Unit::new(task, vec![file]));
        let frames = frames(&core, first);
        let control = Arc::new(Socket {
            netd: Arc::clone(&core.control),
            unit,
            is_queue,
            is_sound: AtomicBool::new(false),
        });
        let bound = Bound {
            socket: socket(first),
            rings: [RingPlace::default(); 4],
            lasts: Some(frames),
            control,
        };
        core.give_bound(bound).unwrap();
        (core, first)
    }

    fn created(core: &mut Core, replaces: Option<DomId>, program: Program) -> DomId {
        create(core, new_domain(replaces, program))
    }

    fn create(core: &mut Core, domain: NewDomain) -> DomId {
        let config = vec![sealed::write("config", b"").unwrap()];
        let created = core.create(domain, &config);
        let (id, _) = created.unwrap().unwrap();
        DomId(id as u16)
    }

    fn socket(domain: DomId) -> NewSocket {
        NewSocket {
            domain,
            on: 1,
            of: None,
            first_frame: 0,
            frames: 2,
            chunk_bytes: 2048,
            entries: 64,
            rings_slot: 0,
        }
    }

    fn frames(core: &Core, id: DomId) -> Arc<Region> {
        Arc::clone(&core.hypervisor.memory(id).unwrap().frames)
    }

    fn end(core: &mut Core, id: DomId) {
        core.hypervisor.give_up(id, "over");
        testing::wait_for("it is not gone", || {
            core.hypervisor.handle(0);
            core.tell_lives();
            let stage = core.hypervisor.domain(id)?.life.stage;
            (stage == Stage::Gone).then_some(())
        });
    }

    fn find_sound(core: &Core) {
        let control = &core.lasting[&1].control;
        assert_eq!(control.control(XdpControl::Sound.encode()), Ok(0));
    }

    #[test]
    fn a_socket_goes_on_with_the_driver_domain_that_takes_its_domains_place() {
        let (mut core, first) = with_socket(Program::Driver);
        let before = frames(&core, first);
        find_sound(&core);
        end(&mut core, first);
        let next = created(&mut core, Some(first), Program::Driver);
        assert!(Arc::ptr_eq(&frames(&core, next), &before));
        assert_eq!(
            core.give_socket(0, socket(next), Vec::new())
                .unwrap()
                .unwrap()
                .0,
            0
        );
        assert!(core.control.take_closed().is_empty());
        // It has not said so itself.
        end(&mut core, next);
        assert!(core.lasting.is_empty());
        let last = created(&mut core, Some(next), Program::Driver);
        assert!(!Arc::ptr_eq(&frames(&core, last), &before));
        assert_eq!(core.control.take_closed(), [SOCKETS]);
    }

    /// As long as it is there, the device's name is taken for who comes next.
    #[test]
    fn a_socket_that_waits_for_the_next_domain_is_closed_before_its_device() {
        let (mut core, first) = with_socket(Program::Driver);
        let device = Unit::new(Task::TakeUp { unit: 1, given: 0 }, Vec::new());
        core.units.kept.insert(1, device);
        find_sound(&core);
        end(&mut core, first);
        created(&mut core, Some(first), Program::Driver);
        core.close(0, 1).unwrap();
        let closed = core.units.waiting.values().map(|(_, waits)| match waits {
            Waits::Close(unit, _) => *unit,
            other => panic!("{other:?}"),
        });
        assert_eq!(closed.collect::<Vec<_>>(), [SOCKETS, 1]);
        assert!(core.units.kept.is_empty());
    }

    /// What is not sound, not a driver domain's, another's, or of another size.
    #[test]
    fn a_socket_goes_on_with_no_other_domain() {
        use Program::{Driver, Guest};
        for (program, next, is_sound, more_frames) in [
            (Driver, Driver, false, 0),
            (Guest, Guest, true, 0),
            (Guest, Driver, true, 0),
            (Driver, Guest, true, 0),
            (Driver, Driver, true, 1),
        ] {
            let (mut core, first) = with_socket(program);
            let other = created(&mut core, None, Driver);
            let before = frames(&core, first);
            if is_sound {
                find_sound(&core);
            }
            end(&mut core, first);
            let mut next = new_domain(Some(first), next);
            next.frames += more_frames;
            let next = create(&mut core, next);
            assert!(!Arc::ptr_eq(&frames(&core, next), &before));
            // Who asks makes one of its own, for which there is no netd here.
            let asked = core.give_socket(0, socket(other), Vec::new());
            assert!(asked.unwrap_err().is_busy);
            assert!(core.lasting.is_empty());
            assert_eq!(core.control.take_closed(), [SOCKETS], "it is closed");
        }
    }

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
