//! After the core has exited, attached guests are reattached with their interfaces.

use crate::attach::{
    NAMES, address, answers_ping, attach, detach, domains, empty, loses_interface, reaches,
};
use crate::machine::{Machine, text};
use crate::processes::kill;
use netdev::netns::Namespace;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testing::{KillOnDrop, TIMEOUT, accept, wait_for, wait_for_exit, wait_until};

const GUEST_COUNT: usize = 64;

fn core(machine: &Machine) -> u64 {
    machine.ask(&["status"])["pid"].as_u64().unwrap()
}

fn mac(machine: &Machine, place: usize) -> String {
    let shown = machine.run(place, "ip", &["-j", "link", "show", NAMES[place]]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    shown[0]["address"].as_str().unwrap().to_owned()
}

/// Attaches a namespace by a persistent interface. The guest of the second namespace is never
/// restarted.
fn attach_persistent(machine: &Machine, place: usize) {
    let (namespace, name) = &machine.places[place];
    let file = machine.folder.path().join(format!("{name}.toml"));
    let guest = format!(
        "restart = {}\n[[vif]]\nendpoint = \"tap\"\nnetns = \"{}\"\nifname = \"{name}\"\n\
         addresses = [\"{}/24\"]\npersistent = true\n",
        place != 1,
        namespace.path().display(),
        address(place)
    );
    fs::write(&file, guest).unwrap();
    machine.ask(&["attach", name, "--file", &file.display().to_string()]);
}

fn log(machine: &Machine) -> String {
    fs::read_to_string(machine.folder.path().join("run/grantway.log")).unwrap()
}

/// A process in a new network namespace. It is killed when this value is dropped.
pub(crate) struct NetnsProcess(pub(crate) std::process::Child);

impl NetnsProcess {
    /// Starts the process by `unshare` with this option.
    pub(crate) fn new(option: &str) -> Self {
        let mut command = Command::new("unshare");
        let child = command
            .args([option, "sleep", "1000"])
            .stdout(Stdio::null());
        Self(child.spawn().unwrap())
    }
}

impl Drop for NetnsProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn namespaces_are_attached_again_with_their_streams() {
    let Some(mut machine) = empty(&["ip", "ping", "unshare"]) else {
        return;
    };
    attach_persistent(&machine, 0);
    attach_persistent(&machine, 1);
    attach(&machine, 2);
    // When the machine returns, another process has the id that one guest used, and no process has
    // the id of the other.
    let inside = NetnsProcess::new("--net");
    let pid = inside.0.id();
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let theirs = || fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    wait_until("no namespace", || theirs().is_some_and(|it| it != own));
    machine.ask(&[
        "attach",
        "gone",
        "--netns",
        &pid.to_string(),
        "--ip",
        "10.0.0.9/24",
    ]);
    let listen = || TcpListener::bind(("10.0.0.2", 7000)).unwrap();
    let listener = machine.places[1].0.enter(listen).unwrap();
    let connect = || {
        wait_for("no connection", || {
            TcpStream::connect(("10.0.0.2", 7000)).ok()
        })
    };
    let mut sender = machine.places[0].0.enter(connect).unwrap();
    let mut receiver = accept(&listener);
    receiver.set_read_timeout(Some(10 * TIMEOUT)).unwrap();
    let mut carries = |byte: u8| {
        sender.write_all(&[byte]).unwrap();
        let mut got = [0];
        receiver.read_exact(&mut got).unwrap();
        assert_eq!(got, [byte]);
    };
    carries(1);
    let macs: Vec<String> = (0..3).map(|place| mac(&machine, place)).collect();

    assert!(kill(core(&machine)));
    machine.has_died();
    loses_interface(&machine, 2);
    drop(inside);
    machine.start_again();
    wait_until("some guests are not reattached", || {
        NAMES
            .iter()
            .all(|name| domains(&machine).contains(&(*name).to_owned()))
    });
    carries(2);
    reaches(&machine, 2, 0);
    assert_eq!(
        (0..3).map(|place| mac(&machine, place)).collect::<Vec<_>>(),
        macs
    );
    wait_until("the skipped guest is not reported", || {
        log(&machine).contains("gone: was attached before, and is not reattached: ")
    });
    assert!(!domains(&machine).contains(&"gone".to_owned()));
    let state = machine.folder.path().join("run/grantway.state");
    wait_until("the skipped guest is still saved", || {
        !fs::read_to_string(&state).unwrap().contains("\"gone\"")
    });
    check_stop_and_start(machine, &macs);
}

/// After a clean stop of the service, guests are also reattached.
fn check_stop_and_start(mut machine: Machine, macs: &[String]) {
    let stopped = Command::new("kill")
        .args(["-TERM", &machine.up.id().to_string()])
        .status();
    assert!(stopped.unwrap().success());
    assert!(wait_for_exit(&mut machine.up).success());
    (0..3).for_each(|place| loses_interface(&machine, place));
    machine.start_again();
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        reaches(&machine, from, to);
    }
    assert_eq!(
        (0..3).map(|place| mac(&machine, place)).collect::<Vec<_>>(),
        macs
    );
    machine.end();
}

/// A program that keeps an interface open, like a process of the previous machine that the kernel
/// has not removed yet.
const HOLD_INTERFACE: &str = "
import fcntl, os, struct, sys, time
tun = os.open('/dev/net/tun', os.O_RDWR)
TUNSETIFF, TAP_NO_PI_VNET_HDR = 0x400454ca, 0x5002
name = sys.argv[1].encode()
fcntl.ioctl(tun, TUNSETIFF, struct.pack('16sH22x', name, TAP_NO_PI_VNET_HDR))
print('has it', flush=True)
time.sleep(1000)
";
/// Time for which the interface is kept open: longer than all pauses between attempts together.
const HOLD_TIME: Duration = Duration::from_secs(4);

/// Keeps the interface of the first place open by [`HOLD_INTERFACE`].
fn contain(machine: &Machine) -> KillOnDrop {
    let contain = || {
        wait_for("the interface cannot be opened", || {
            let mut contain = Command::new("python3");
            let contain = contain.args(["-c", HOLD_INTERFACE, NAMES[0]]);
            let mut contain = contain.stdout(Stdio::piped()).spawn().unwrap();
            let mut said = [0; 6];
            let has = contain.stdout.as_mut().unwrap().read_exact(&mut said);
            let contain = KillOnDrop(contain);
            has.is_ok().then_some(contain)
        })
    };
    machine.places[0].0.enter(contain).unwrap()
}

#[test]
fn a_pending_guest_can_be_detached() {
    let Some(mut machine) = empty(&["ip", "ping", "python3"]) else {
        return;
    };
    attach(&machine, 0);
    assert!(kill(core(&machine)));
    machine.has_died();
    let held = contain(&machine);
    machine.start_again();
    let detached = machine.ask(&["detach", NAMES[0]]);
    assert_eq!(detached["domain"], NAMES[0]);
    drop(held);
    wait_until("a guest is still pending", || {
        log(&machine).contains("every guest of the previous machine is reattached or given up")
    });
    assert!(!domains(&machine).contains(&NAMES[0].to_owned()));
    let state = machine.folder.path().join("run/grantway.state");
    wait_until("the guest is still saved", || !state.exists());
    machine.end();
}

#[test]
fn an_interface_that_is_busy_is_waited_for() {
    let Some(mut machine) = empty(&["ip", "ping", "python3"]) else {
        return;
    };
    attach_persistent(&machine, 0);
    attach_persistent(&machine, 1);
    assert!(kill(core(&machine)));
    machine.has_died();
    let held = contain(&machine);
    machine.start_again();
    wait_until("the other guest is not reattached", || {
        domains(&machine).contains(&NAMES[1].to_owned())
    });
    std::thread::sleep(HOLD_TIME);
    assert!(!log(&machine).contains("is not reattached"));
    drop(held);
    wait_until("the guest is not reattached", || {
        domains(&machine).contains(&NAMES[0].to_owned())
    });
    reaches(&machine, 0, 1);
    machine.end();
}

/// Records ARP traffic at an interface.
struct ArpWatch {
    _tcpdump: KillOnDrop,
    file: PathBuf,
}

impl ArpWatch {
    fn start(machine: &Machine, place: usize) -> Self {
        let path = machine.folder.path().join(format!("seen-{place}"));
        let file = fs::File::create(&path).unwrap();
        let mut tcpdump = Command::new("tcpdump");
        let args = ["-l", "-n", "--immediate-mode", "-i", NAMES[place], "arp"];
        let tcpdump = tcpdump.args(args).stdout(file.try_clone().unwrap());
        let tcpdump = tcpdump.stderr(file);
        let start = || KillOnDrop(tcpdump.spawn().unwrap());
        let watching = Self {
            _tcpdump: machine.places[place].0.enter(start).unwrap(),
            file: path,
        };
        wait_until("tcpdump does not start", || {
            watching.seen().contains("listening on")
        });
        watching
    }

    fn seen(&self) -> String {
        fs::read_to_string(&self.file).unwrap()
    }

    /// Returns the number of recorded announcements by a place.
    fn announcements(&self, place: usize) -> usize {
        let ip = address(place);
        let said = [
            format!("ARP, Announcement {ip},"),
            format!("ARP, Request who-has {ip} tell {ip},"),
        ];
        let is_one = |line: &&str| said.iter().any(|said| line.contains(said));
        self.seen().lines().filter(is_one).count()
    }
}

/// The guest announces itself, because a station whose query was not answered would retry only
/// after a second.
#[test]
fn a_returning_guest_announces_itself() {
    let Some(mut machine) = empty(&["ip", "ping", "tcpdump"]) else {
        return;
    };
    attach_persistent(&machine, 0);
    attach_persistent(&machine, 1);
    let watching = [0, 1].map(|place| ArpWatch::start(&machine, place));
    assert!(kill(core(&machine)));
    machine.has_died();
    machine.start_again();
    // No other guest is attached when the first guest announces itself, so only the second
    // announcement is expected.
    wait_until("no announcement", || {
        watching[0].announcements(1) + watching[1].announcements(0) > 0
    });
    reaches(&machine, 0, 1);
    drop(watching);
    machine.end();
}

/// The new owner of an address gets the first free MAC. A station that knows the previous MAC would
/// use it for at least fifteen seconds.
#[test]
fn a_new_owner_of_an_address_is_reachable() {
    let Some(machine) = empty(&["ip", "ping", "tcpdump"]) else {
        return;
    };
    for place in [0, 1, 2] {
        attach(&machine, place);
    }
    reaches(&machine, 2, 1);
    for place in [0, 1] {
        detach(&machine, place);
    }
    attach(&machine, 1);
    let attached = Instant::now();
    while !answers_ping(&machine, 2, 1) {
        let is_early = attached.elapsed() < Duration::from_secs(12);
        assert!(is_early, "the station still uses the previous MAC");
    }
    // The driver domain sends the announcement again after a restart, because it may have died
    // before it sent the first one. A guest that connects late gets it, too.
    let watching = ArpWatch::start(&machine, 2);
    machine.ask(&["restart", "driver"]);
    wait_until("no announcement after the second start", || {
        watching.announcements(1) > 0
    });
    drop(watching);
    machine.end();
}

/// A network namespace with a name. It is deleted when this value is dropped.
struct NamedNetns<'a>(&'a str);

impl<'a> NamedNetns<'a> {
    fn new(name: &'a str) -> Self {
        let ran = Command::new("ip").args(["netns", "add", name]).status();
        assert!(ran.unwrap().success());
        Self(name)
    }
}

impl Drop for NamedNetns<'_> {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "delete", self.0])
            .status();
    }
}

/// A new namespace that has the name of an attached one is not attached.
#[test]
fn a_different_namespace_of_the_name_is_skipped() {
    let Some(mut machine) = empty(&["ip", "ping"]) else {
        return;
    };
    let name = format!("left-{}", std::process::id());
    let named = NamedNetns::new(&name);
    machine.ask(&["attach", "other", "--netns", &name, "--ip", "10.0.0.9/24"]);
    attach(&machine, 0);
    assert!(kill(core(&machine)));
    machine.has_died();
    drop(named);
    let _named = NamedNetns::new(&name);
    machine.start_again();
    wait_until("the skipped guest is not reported", || {
        log(&machine).contains("other: was attached before, and is not reattached: ")
    });
    wait_until("the other guest is not attached", || {
        domains(&machine).contains(&NAMES[0].to_owned())
    });
    let inside = Command::new("ip")
        .args(["netns", "exec", &name, "ip", "link"])
        .output();
    let inside = text(&inside.unwrap().stdout);
    assert!(!inside.contains("eth0"), "{inside}");
    machine.end();
}

/// A namespace is deleted and created again under the same name while the machine runs.
#[test]
fn a_namespace_created_again_is_attached_again() {
    let Some(machine) = empty(&["ip", "ping"]) else {
        return;
    };
    attach(&machine, 0);
    let name = format!("again-{}", std::process::id());
    let request = ["attach", "again", "--netns", &name, "--ip", "10.0.0.9/24"];
    for _ in 0..3 {
        let _named = NamedNetns::new(&name);
        // The machine may not have noticed the deletion of the namespace before.
        wait_until("the namespace is not attached", || {
            let attached = machine.grantway(&request);
            let is_attached = attached.status.success();
            let why = text(&attached.stderr);
            assert!(
                is_attached || why.contains("guest again is attached already"),
                "{why}"
            );
            is_attached
        });
        let ping = Command::new("ip")
            .args(["netns", "exec", &name])
            .args(["ping", "-c", "1", "-w", "60", &address(0)])
            .output()
            .unwrap();
        assert!(ping.status.success(), "{ping:?}");
    }
    wait_until("the guest of the deleted namespace still exists", || {
        domains(&machine) == ["driver", NAMES[0]]
    });
    machine.end();
}

#[test]
fn many_guests_are_attached_again_quickly() {
    let Some(mut machine) = empty(&["ip", "ping"]) else {
        return;
    };
    let crowd: Vec<Namespace> = (0..GUEST_COUNT)
        .map(|_| Namespace::new().unwrap())
        .collect();
    for (n, namespace) in crowd.iter().enumerate() {
        let path = namespace.path().display().to_string();
        let cidr = format!("10.1.0.{}/24", n + 1);
        machine.ask(&["attach", &format!("n{n}"), "--netns", &path, "--ip", &cidr]);
    }
    let before = machine.ask(&["status"])["domains"]
        .as_array()
        .unwrap()
        .len();
    assert!(kill(core(&machine)));
    let began = Instant::now();
    machine.has_died();
    machine.start_again();
    wait_until("some guests are not reattached", || {
        let status = machine.ask(&["status"]);
        let domains = status["domains"].as_array().unwrap();
        domains.len() == before && domains.iter().all(|d| d["state"] == "running")
    });
    let outage: Duration = began.elapsed();
    eprintln!(
        "{GUEST_COUNT} guests were reattached after {} ms",
        outage.as_millis()
    );
    let ping = crowd[0].enter(|| {
        wait_until("no answer to a ping", || {
            let ping = Command::new("ping")
                .args(["-c", "1", "-W", "1", "10.1.0.64"])
                .output();
            ping.unwrap().status.success()
        });
    });
    ping.unwrap();
    machine.end();
}
