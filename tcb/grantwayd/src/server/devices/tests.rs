use super::super::CoreSource;
use super::*;
use crate::args::Args;
use crate::child::Helper;
use abi::core::{CPU_WORDS, NewDomain, RingExtent, Text};
use abi::xdp::XdpControl;
use monitor::{DeviceControl, Hypervisor};
use rustix::net::sockopt::set_socket_linger;
use shmem::Region;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use testing::TIMEOUT;

fn core() -> Core {
    let args = Args {
        state: None,
        helpers: "/nowhere".into(),
        programs: "/nowhere".into(),
        driver: "driver",
        with_reader: false,
        manager_args: Vec::new(),
    };
    let (signals, _signal) = UnixStream::pair().unwrap();
    let hypervisor = Hypervisor::new(None).unwrap();
    Core::new(hypervisor, args, signals, 0).unwrap()
}

/// The next manager counts tokens from 1 again, so it could mistake the answer for an answer to its
/// request.
#[test]
fn answers_for_an_exited_manager_have_no_token() {
    let mut core = core();
    let devs = &mut core.devs;
    devs.add_pending(1, PendingRequest::Open(7, None));
    devs.add_pending(2, PendingRequest::Open(8, None));
    assert!(devs.close(3, 7).0, "netd is still opening it");
    core.handle(CoreSource::ManagerEnded);
    let waiting: Vec<_> = core.devs.waiting.values().collect();
    let [(0, closed), (0, opening)] = waiting[..] else {
        panic!("{waiting:?}");
    };
    assert!(matches!(closed, PendingRequest::Closed(Some(0))));
    assert!(matches!(opening, PendingRequest::Open(8, None)));
}

/// Closing the last descriptor of a device may take long, so the core leaves it to the next netd.
#[test]
fn devices_closed_without_netd_stay_open_here() {
    let mut core = core();
    let (mut other_end, end) = UnixStream::pair().unwrap();
    other_end.set_nonblocking(true).unwrap();
    let state = sealed::write("device", b"").unwrap();
    let device = DevHandle::new(
        NetdRequest::Adopt { dev: 1, given: 1 },
        vec![state, end.into()],
    );
    core.devs.kept.insert(1, device);
    core.close(0, 1).unwrap();
    assert!(!core.devs.has_dev(1) && core.devs.is_any_closing());
    let error = other_end.read(&mut [0]).unwrap_err();
    assert_eq!(
        error.kind(),
        std::io::ErrorKind::WouldBlock,
        "it was closed"
    );
}

/// Returns a descriptor whose close takes a minute, or until the other end is dropped, because the
/// peer does not read the sent data.
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

/// Asserts that the descriptor was closed: the peer receives the end of the data.
fn assert_closed(mut other: TcpStream) {
    other.set_read_timeout(Some(10 * TIMEOUT)).unwrap();
    let end = std::io::copy(&mut other, &mut std::io::sink());
    assert!(end.is_ok(), "it was not closed: {end:?}");
}

/// Each descriptor is the last of its object: netd is dead, but the core has not noticed.
#[test]
fn slow_closes_do_not_block() {
    let mut core = core();
    core.netd = Helper::new(Path::new("/bin"), "true", None);
    core.netd.start(0).unwrap();
    let (fds, others): (Vec<_>, Vec<_>) = [(); 5].map(|()| slow()).into_iter().unzip();
    let [of_device, opened, unwanted, refused, of_socket] = fds.try_into().unwrap();
    let began = Instant::now();
    let state = sealed::write("device", b"").unwrap();
    let device = DevHandle::new(
        NetdRequest::Adopt { dev: 1, given: 1 },
        vec![state, of_device],
    );
    core.devs.kept.insert(1, device);
    assert!(core.netd.is_linked());
    core.close(0, 1).unwrap();
    let socket = NewSocket {
        domain: DomId(1),
        on: 2,
        frames_owner: None,
        first_frame: 0,
        frames: 1,
        chunk_bytes: 2048,
        entries: 64,
        rings_slot: 0,
        is_pci: false,
    };
    let reply =
        |core: &mut Core, waits: Option<PendingRequest>, message: NetdReply, fd: OwnedFd| {
            let token = waits.map_or(u32::MAX, |waits| core.devs.add_pending(0, waits));
            let mut fds = vec![fd];
            core.handle_reply(Record { token, message }, &mut fds);
            core.hypervisor.close(fds);
        };
    let message = || NetdReply::Opened { given: 0 };
    reply(
        &mut core,
        Some(PendingRequest::Closed(None)),
        message(),
        opened,
    );
    reply(&mut core, None, message(), unwanted);
    let waits = PendingRequest::Bind(socket, SOCKETS, vec![refused], None);
    let why = sealed::write("why", b"so").unwrap();
    reply(
        &mut core,
        Some(waits),
        NetdReply::Refused { is_busy: false },
        why,
    );
    core.devs.add_pending(
        0,
        PendingRequest::Bind(socket, SOCKETS, vec![of_socket], None),
    );
    core.netd_exited(0);
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "the core was blocked"
    );
    others.into_iter().for_each(assert_closed);
}

fn new_domain(replaces: Option<DomId>, program: Program) -> NewDomain {
    NewDomain {
        replaces,
        name: Text::truncated("d"),
        program,
        frames: 4,
        grant_entries: 0,
        window_slots: 64,
        collateral: 0,
        weight: 1,
        devices: 1,
        cpus: [0; CPU_WORDS],
        tsc_hz: 0,
        foreign_pages: 0,
    }
}

/// Returns a core with one domain of this program, which has a socket on device 1.
fn with_socket(program: Program) -> (Core, DomId) {
    let mut core = core();
    let first = created(&mut core, None, program);
    let (on, dev, is_queue) = (1, SOCKETS, false);
    let task = NetdRequest::AdoptSocket { on, dev, is_queue };
    let file = sealed::write("socket", b"").unwrap();
    core.devs.kept.insert(dev, DevHandle::new(task, vec![file]));
    let frames = frames(&core, first);
    let control = Arc::new(NetdSocket {
        netd: Arc::clone(&core.control),
        dev,
        must_end: is_queue,
        mapping: Mutex::new(None),
        is_sound: AtomicBool::new(false),
    });
    let bound = BoundSocket {
        socket: socket(first),
        rings: [RingExtent::default(); 4],
        retained_frames: Some(frames),
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
        frames_owner: None,
        first_frame: 0,
        frames: 2,
        chunk_bytes: 2048,
        entries: 64,
        rings_slot: 0,
        is_pci: false,
    }
}

fn frames(core: &Core, id: DomId) -> Arc<Region> {
    Arc::clone(&core.hypervisor.memory(id).unwrap().frames)
}

fn end(core: &mut Core, id: DomId) {
    core.hypervisor.abandon(id, "over");
    testing::wait_for("the domain has not exited", || {
        core.hypervisor.handle_events(0);
        core.report_lives();
        let stage = core.hypervisor.domain(id)?.liveness.stage;
        (stage == Stage::TornDown).then_some(())
    });
}

fn report_sound(core: &Core) {
    let control = &core.lasting[&1].control;
    assert_eq!(control.control(XdpControl::ReportReusable.encode()), Ok(0));
}

#[test]
fn a_sound_socket_passes_to_the_next_driver() {
    let (mut core, first) = with_socket(Program::Driver);
    let before = frames(&core, first);
    report_sound(&core);
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
    // The successor has not reported the socket as sound.
    end(&mut core, next);
    assert!(core.lasting.is_empty());
    let last = created(&mut core, Some(next), Program::Driver);
    assert!(!Arc::ptr_eq(&frames(&core, last), &before));
    assert_eq!(core.control.take_closed(), [SOCKETS]);
}

/// While the socket exists, the device's name is in use.
#[test]
fn a_waiting_socket_closes_before_its_device() {
    let (mut core, first) = with_socket(Program::Driver);
    let device = DevHandle::new(NetdRequest::Adopt { dev: 1, given: 0 }, Vec::new());
    core.devs.kept.insert(1, device);
    report_sound(&core);
    end(&mut core, first);
    created(&mut core, Some(first), Program::Driver);
    core.close(0, 1).unwrap();
    let closed = core.devs.waiting.values().map(|(_, waits)| match waits {
        PendingRequest::Close(dev, _) => *dev,
        other => panic!("{other:?}"),
    });
    assert_eq!(closed.collect::<Vec<_>>(), [SOCKETS, 1]);
    assert!(core.devs.kept.is_empty());
}

/// The socket is unsound, or belongs to another domain, or the successor runs another program or
/// has another number of frames.
#[test]
fn no_other_domain_inherits_a_socket() {
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
            report_sound(&core);
        }
        end(&mut core, first);
        let mut next = new_domain(Some(first), next);
        next.frames += more_frames;
        let next = create(&mut core, next);
        assert!(!Arc::ptr_eq(&frames(&core, next), &before));
        // The request needs a new socket, but no netd runs here.
        let answer = core.give_socket(0, socket(other), Vec::new());
        assert!(answer.unwrap_err().is_busy);
        assert!(core.lasting.is_empty());
        assert_eq!(
            core.control.take_closed(),
            [SOCKETS],
            "the socket was not closed"
        );
    }
}

#[test]
fn rings_too_large_for_their_slots_are_rejected() {
    let ring = |pages| RingExtent { page: 5, pages };
    let slots = ring_slots(512);
    let placed = |rings, first| device_maps(&rings, first, slots);
    let found = placed([ring(1), ring(0), ring(slots), ring(0)], 7).unwrap();
    let slot = |n: usize| (found[n].slot.0, found[n].pages);
    assert_eq!(
        (found.len(), slot(0), slot(1)),
        (2, (7, 1), (7 + slots, slots))
    );
    assert!(placed([ring(slots + 1); 4], 0).is_err());
    assert!(placed([ring(1); 4], u32::MAX - 1).is_err());
}

/// The contents of a driver domain's frames outlive the domain, and no other program receives them.
#[test]
fn frames_of_a_dead_driver_pass_to_its_successor() {
    let mut core = core();
    let first = created(&mut core, None, Program::Driver);
    let before = frames(&core, first);
    end(&mut core, first);
    let next = created(&mut core, Some(first), Program::Driver);
    assert!(Arc::ptr_eq(&frames(&core, next), &before));
    end(&mut core, next);
    core.forget(next).unwrap();
    assert_eq!(Arc::strong_count(&before), 1);

    let guest = created(&mut core, None, Program::Guest);
    let before = frames(&core, guest);
    end(&mut core, guest);
    let next = created(&mut core, Some(guest), Program::Guest);
    assert!(!Arc::ptr_eq(&frames(&core, next), &before));
}
