use super::edits::{EditKind, EditOrigin, RestartGoal};
use super::*;
use crate::build::PendingGive;
use crate::life::WorkerCall;
use abi::core::Record;
use abi::layout::mailbox;
use abi::machine::{ConfigValue, ControlRequest, Restarts};
use abi::mailbox::MailboxRequest;
use config::live;
use link::Link;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::thread;

const FILE: &str = "[[guest]]\nname = \"a\"\n[[guest.vif]]\nendpoint = \"echo\"\n";

/// Runs `test` with a server whose core carries out every request.
fn with_server(test: impl FnOnce(&mut ManagerServer<'_>)) {
    let (ours, theirs) = Link::pair().unwrap();
    let core = thread::spawn(move || {
        while let Ok(received) = theirs.receive::<CoreRequest>() {
            let Some(received) = received else {
                theirs.wait(PollFlags::IN, None);
                continue;
            };
            let done = Record {
                token: received.record.token,
                message: CoreMessage::Done { value: 0 },
            };
            // A test may end before the core has answered its last request.
            if theirs.send(&done, &[]).is_err() {
                return;
            }
        }
    });
    let file = config::ConfigFile {
        name: "f".into(),
        text: FILE.into(),
    };
    let machine = live::machine(&config::parse("f", FILE).unwrap(), &[file]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = UnixListener::bind(dir.path().join("socket")).unwrap();
    let mut link = CoreLink::new(ours);
    let log = LogSender::start(None).unwrap();
    let mut server = ManagerServer::new(
        &mut link,
        MachineState::new(machine),
        socket,
        log,
        (1, 2, 3),
    )
    .unwrap();
    server.complete_ns = Some(1);
    test(&mut server);
    drop(link);
    core.join().unwrap();
}

/// Restarts the worker of the driver domain for a requester. The worker runs again in the turn
/// after the deadline. It is connected if the goal is [`RestartGoal::Up`].
fn restart(server: &mut ManagerServer<'_>, origin: EditOrigin, goal: RestartGoal) {
    let (place, id) = (server.state.spec().workers()[0], DomId(9));
    server.state.set_id(place, id);
    server.state.set_stage(place, Stage::Running, "runs");
    if goal == RestartGoal::Up {
        server.state.connect(place);
    }
    let known = Restarts {
        count: 1,
        ..Restarts::default()
    };
    let stage = Some(Stage::Starting);
    let life = Lifecycle::resume(place, Some(10), known, stage, 0);
    server.lives.insert(place, life);
    let late = Restarting {
        origin,
        starts: vec![(place, 0)],
        goal,
    };
    server.restarting.insert(4, late);
    server.deadlines.set(Deadline::Restart(4), 5);
    server.process(6);
}

/// Returns the answer that the server has sent to its only client. Panics if it has sent none.
fn answer(server: &mut ManagerServer<'_>, client: UnixStream) -> String {
    server.clients.get_mut(&0).unwrap().send(6);
    client.set_nonblocking(true).unwrap();
    let mut answer = String::new();
    BufReader::new(client).read_line(&mut answer).unwrap();
    answer
}

#[test]
fn concurrently_reattached_guests_have_own_slots() {
    with_server(|server| {
        let workers = server.state.spec().workers();
        workers
            .iter()
            .for_each(|&at| server.state.set_id(at, DomId(1)));
        for name in ["b", "c"] {
            let section = format!(r#"{{"name":"{name}","vif":[{{"endpoint":"echo"}}]}}"#);
            let guest = serde_json::from_str(&section).unwrap();
            server
                .begin_attach(EditOrigin::PreviousMachine, (&guest, None), 0)
                .unwrap();
        }
        let mut slots = Vec::new();
        for (name, id) in [("b", 8), ("c", 9)] {
            let place = server.state.place(name).unwrap();
            server.state.set_id(place, DomId(id));
            server.connect(place).unwrap();
            let ports = server.state.spec().guest(name).unwrap().ports;
            slots.extend(ports.into_values().flatten().map(|vif| vif.first_slot));
        }
        assert!(slots.len() == 2 && slots[0] != slots[1], "{slots:?}");
    });
}

#[test]
fn an_attach_done_at_its_deadline_succeeds() {
    with_server(|server| {
        let (client, theirs) = UnixStream::pair().unwrap();
        server.serve_internal(client);
        let section = r#"{"name":"b","vif":[{"endpoint":"echo"}]}"#;
        let guest = serde_json::from_str(section).unwrap();
        server.attach_for(0, guest, 0).unwrap();
        let place = server.state.place("b").unwrap();
        // The process was started, and reports in the turn of the deadline.
        server.lives.get_mut(&place).unwrap().started(0);
        server.state.set_id(place, DomId(8));
        server.state.set_stage(place, Stage::Running, "runs");
        server.state.connect(place);
        server.process(edits::EDIT_TIMEOUT_NS);
        let answer = answer(server, theirs);
        assert!(answer.contains(r#""domain":"b","id":8"#), "{answer}");
    });
}

#[test]
fn a_restart_done_at_its_deadline_succeeds() {
    with_server(|server| {
        let (client, theirs) = UnixStream::pair().unwrap();
        server.serve_internal(client);
        restart(server, EditOrigin::Client(0), RestartGoal::Up);
        let answer = answer(server, theirs);
        assert!(answer.contains("\"id\":9"), "{answer}");
    });
}

#[test]
fn a_restart_that_misses_its_deadline_fails() {
    with_server(|server| {
        let (client, theirs) = UnixStream::pair().unwrap();
        server.serve_internal(client);
        restart(server, EditOrigin::Client(0), RestartGoal::Ended);
        assert!(server.restarting.is_empty());
        let answer = answer(server, theirs);
        assert!(answer.contains("did not restart within 20 s"), "{answer}");
    });
}

#[test]
fn workers_that_run_at_the_deadline_keep_their_nics() {
    with_server(|server| {
        restart(server, EditOrigin::Reload, RestartGoal::NicsChanged);
        let awaited: Vec<_> = server.restarting.values().collect();
        assert!(
            matches!(&awaited[..], [one] if one.goal == RestartGoal::Connected),
            "{awaited:?}"
        );
    });
}

/// Begins to add a NIC for client 0. Returns the place of the running worker, which keeps its NICs
/// until netd has opened the new NIC's device.
fn begin_to_add_nic(server: &mut ManagerServer<'_>) -> usize {
    let place = server.state.spec().workers()[0];
    server.state.set_id(place, DomId(9));
    server.state.set_stage(place, Stage::Running, "runs");
    let stage = Some(Stage::Running);
    let life = Lifecycle::resume(place, Some(10), Restarts::default(), stage, 0);
    server.lives.insert(place, life);
    let file = config::ConfigFile {
        name: "f".into(),
        text: format!("[[nic]]\nname = \"w\"\nkind = \"tap\"\n{FILE}"),
    };
    let (spec, config) = (server.state.spec(), server.state.spec().config().unwrap());
    let difference = live::reload::difference(spec.live().unwrap(), &config, &[file]);
    let step = difference.unwrap().nics.remove(0);
    server.begin_nics(EditOrigin::Client(0), &step, 0).unwrap();
    let pending = server.state.spec().pending_nic_change().unwrap();
    assert_eq!(pending.opens, [(place, 0)]);
    place
}

/// Begins to add a NIC for client 0, and lets `fail` make the change fail, for the worker at this
/// place. Panics unless the machine then has the same NICs as before. Returns the client's answer.
fn answer_to_failed_nic(
    server: &mut ManagerServer<'_>,
    fail: impl FnOnce(&mut ManagerServer<'_>, usize),
) -> String {
    let (client, theirs) = UnixStream::pair().unwrap();
    server.serve_internal(client);
    let before = server.state.spec().clone();
    let place = begin_to_add_nic(server);
    fail(server, place);
    let spec = server.state.spec();
    assert_eq!(spec.pending_nic_change(), None);
    assert_eq!(spec.live(), before.live());
    assert_eq!(spec.domains(), before.domains());
    for worker in spec.workers() {
        assert_eq!(spec.config_text(worker), before.config_text(worker));
    }
    answer(server, theirs)
}

#[test]
fn workers_keep_running_if_netd_is_late() {
    with_server(|server| {
        let answer = answer_to_failed_nic(server, |server, place| {
            let name = server.state.domain(place).unwrap().name.clone();
            let restart = server.restart_now(EditOrigin::Client(0), (&name, "killed"), 0);
            let refused = restart.unwrap_err();
            assert!(refused.contains("try again later"), "{refused}");
            server.expire(edits::EDIT_TIMEOUT_NS);
            assert!(server.lives[&place].is_settled());
        });
        assert!(
            answer.contains("netd did not answer within 20 s"),
            "{answer}"
        );
    });
}

#[test]
fn a_worker_that_exits_while_netd_opens_devices_keeps_its_nics() {
    with_server(|server| {
        let answer = answer_to_failed_nic(server, |server, place| {
            server.state.set_stage(place, Stage::TornDown, "killed");
            server.advance_domains(1);
            assert!(server.restarting.is_empty());
            assert!(!server.is_refitting(place));
        });
        assert!(answer.contains("exited while netd opened"), "{answer}");
    });
}

#[test]
fn an_ending_machine_does_not_wake_for_edits() {
    with_server(|server| {
        let token = server.core.post(CoreRequest::Status {}, &[]);
        let mut life = Lifecycle::default();
        life.giving = Some(PendingGive::of_token(token));
        server.lives.insert(1, life);
        while !server.core.has_answer(token) {
            server.wait(None, 0);
            server.core.receive_messages();
        }
        assert!(server.is_answered());
        server.ending = Some(token + 1);
        assert!(!server.is_answered());
    });
}

#[test]
fn late_edits_do_not_change_an_ending_machine() {
    with_server(|server| {
        let guest: ConfigValue = serde_json::from_str(r#"{"name":"a","vif":[]}"#).unwrap();
        let edit = PendingEdit {
            place: 1,
            began_ns: 0,
            kind: EditKind::Change(guest),
            origins: vec![(EditOrigin::PreviousMachine, None)],
        };
        server.begin_edit("a".to_owned(), edit);
        let opening = Restarting {
            origin: EditOrigin::Reload,
            starts: Vec::new(),
            goal: RestartGoal::Opened,
        };
        server.await_restart(opening, 1);
        server.ending = Some(1);
        server.expire(u64::MAX);
        assert!(server.deadlines.next_ns().is_none());
        assert!(server.edits.contains_key("a") && server.restarting.len() == 1);
    });
}

/// Replies to the request in a domain's mailbox. Returns whether it is a request for counters.
fn reply_to_request(domain: &File) -> bool {
    let mut word = [0; 4];
    domain
        .read_exact_at(&mut word, mailbox::REQUEST_BYTES as u64)
        .unwrap();
    let mut request = vec![0; u32::from_le_bytes(word) as usize];
    domain
        .read_exact_at(&mut request, mailbox::IN as u64)
        .unwrap();
    domain
        .read_exact_at(&mut word, mailbox::REQUEST as u64)
        .unwrap();
    domain.write_all_at(b"{}", mailbox::OUT as u64).unwrap();
    domain
        .write_all_at(&2_u32.to_le_bytes(), mailbox::REPLY_BYTES as u64)
        .unwrap();
    domain.write_all_at(&word, mailbox::REPLY as u64).unwrap();
    request == serde_json::to_vec(&MailboxRequest::Stat).unwrap()
}

/// A worker receives requests of clients and changes of rules in the order in which they were sent.
#[test]
fn counters_have_their_turn_while_rules_change() {
    const CHANGES: u32 = 40;
    with_server(|server| {
        let (worker, guest) = (server.state.spec().workers()[0], server.state.place("a"));
        let guest = guest.unwrap();
        for (place, id) in [(worker, DomId(9)), (guest, DomId(8))] {
            server.state.set_id(place, id);
            server.state.set_stage(place, Stage::Running, "runs");
            server.state.connect(place);
        }
        let domain = tempfile::tempfile().unwrap();
        domain.set_len(mailbox::BYTES as u64).unwrap();
        let ours = domain.try_clone().unwrap();
        server.core.add_mailbox(DomId(9), ours.into(), 0);
        let stage = Some(Stage::Running);
        let mut life = Lifecycle::resume(guest, Some(10), Restarts::default(), stage, 0);
        let change =
            |conn| WorkerCall::new(worker, conn, &MailboxRequest::Detach { conn }).unwrap();
        life.calls = (0..CHANGES).map(change).collect();
        // The first change is pending when the client sends its request.
        server.core.relay(DomId(9), b"{}", None, monotonic_ns());
        let (client, mut theirs) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        server.serve_internal(client);
        let relay = ControlRequest::Relay {
            domain: server.state.domain(worker).unwrap().name.clone(),
            request: serde_json::to_string(&MailboxRequest::Stat).unwrap(),
        };
        serde_json::to_writer(&theirs, &relay).unwrap();
        theirs.write_all(b"\n").unwrap();
        server.process_events();
        server.lives.insert(guest, life);
        let mut order = Vec::new();
        while order.len() < CHANGES as usize + 2 {
            order.push(reply_to_request(&domain));
            server.process_events();
        }
        assert!(!order[0] && order[1], "{order:?}");
        let answer = answer(server, theirs);
        assert_eq!(answer, "{\"reply\":\"{}\"}\n");
        assert!(server.lives[&guest].calls.iter().all(WorkerCall::is_done));
    });
}
