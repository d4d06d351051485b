//! Traffic of virtual machines over vhost-user, also when a process dies.

mod emulated;
mod front_end;
mod holders;
mod libvirt;
mod qemu;
mod uml;

use crate::attach::domains;
use crate::machine::{Machine, text};
use crate::processes::{kill, pid};
use front_end::FrontEnd;
use holders::holders;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use testing::{Running, child_of, cpu_ticks, require, wait_for, wait_until};
use uml::Uml;

const HOST: &str = "10.7.0.1";
const VM: &str = "10.7.0.2";

/// A program that sends data to the virtual machine and compares the checksum, and receives and
/// compares a text. Its arguments are the address, the megabytes of data, and the lines of the
/// text. If a further argument names a file, the program repeats this until the file exists.
const FILES: &str = r#"
import hashlib, os, socket, sys
def connect(port):
    for _ in range(100):
        try:
            return socket.create_connection((sys.argv[1], port), timeout=600)
        except ConnectionRefusedError:
            import time; time.sleep(0.1)
data = bytes(range(251)) * (int(sys.argv[2]) * 1024 * 1024 // 251)
expected = ''.join(f'{n}\n' for n in range(1, int(sys.argv[3]) + 1)).encode()
while True:
    s = connect(6001)
    print('connected', flush=True)
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    answer = s.makefile().read().split()[0]
    assert answer == hashlib.md5(data).hexdigest(), answer
    got = b''.join(iter(lambda s=connect(6002): s.recv(1 << 20), b''))
    assert hashlib.md5(got).hexdigest() == hashlib.md5(expected).hexdigest(), len(got)
    if len(sys.argv) < 5 or os.path.exists(sys.argv[4]):
        break
print('whole')
"#;

/// Sizes of the data and the text.
#[derive(Clone, Copy)]
struct FileSizes {
    megabytes: u32,
    lines: u32,
}

impl FileSizes {
    /// For emulated processors, and under kills. The text has 15 MB.
    const SMALL: Self = Self {
        megabytes: 32,
        lines: 2_000_000,
    };
    /// The text has 106 MB.
    const LARGE: Self = Self {
        megabytes: 100,
        lines: 13_000_000,
    };

    /// Starts [`FILES`]. Repeats it until the file `end` exists, if any.
    fn start(self, machine: &Machine, end: Option<&Path>) -> Running {
        let Self { megabytes, lines } = self;
        let sizes = [megabytes, lines].map(|size| size.to_string());
        let end = end.map(|end| end.display().to_string());
        let mut words = vec!["-c", FILES, VM, &sizes[0], &sizes[1]];
        words.extend(end.as_deref());
        machine.spawn(0, "python3", &words)
    }
}

/// Returns a machine whose wire has an address, and the socket of its virtual machine. `more` holds
/// keys of the interface.
fn start(mtu: u32, more: &str) -> Option<(Machine, PathBuf)> {
    let mut path = PathBuf::new();
    let machine = Machine::start(&["ping", "ip", "python3"], &["wire"], |paths| {
        path = tempfile::tempdir().unwrap().keep().join("vm.sock");
        format!(
            "[driver]\nrestart_pause_ms = 20\n[[nic]]\nname = \"wire\"\nkind = \"tap\"\n\
             ifname = \"wire\"\nnetns = \"{}\"\naddresses = [\"{HOST}/24\"]\nmtu = {mtu}\n\
             [[guest]]\nname = \"vm\"\n[[guest.vif]]\nendpoint = \"vhost-user\"\n\
             socket = \"{}\"\nmtu = {mtu}\n{more}\n",
            paths[0],
            path.display()
        )
    })?;
    Some((machine, path))
}

/// Starts a machine for User-Mode Linux.
fn start_for_uml(mtu: u32, more: &str) -> Option<(Machine, PathBuf)> {
    require!(tool("linux.uml"), tool("busybox"), tool("cc"));
    start(mtu, more)
}

fn boot(machine: &Machine, socket: &Path, name: &str, mtu: u32) -> Uml {
    boot_with(machine, socket, name, &[format!("mtu={mtu}")])
}

fn boot_with(machine: &Machine, socket: &Path, name: &str, words: &[String]) -> Uml {
    let folder = machine.folder.path().join(name);
    let address = format!("address={VM}/24");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Uml::boot(folder, socket, &[&[&*address], &words[..]].concat())
}

/// Returns the process id of a domain, or of one of the core's helpers.
fn process(machine: &Machine, core: u64, name: &str) -> u64 {
    match name {
        "grantway-manager" | "grantway-netd" => wait_for("no helper", || child_of(core, name)),
        domain => pid(machine, domain),
    }
}

fn answers(machine: &Machine) -> bool {
    let ping = machine.run(0, "ping", &["-c", "1", "-W", "0.3", VM]);
    ping.status.success()
}

fn exchanges_files(machine: &Machine) {
    is_whole(&FileSizes::SMALL.start(machine, None).output());
}

fn is_whole(run: &Output) {
    assert!(text(&run.stdout).ends_with("whole\n"), "{run:?}");
}

#[test]
fn files_pass_complete_in_both_directions() {
    for mtu in [1500, 9000] {
        let Some((machine, socket)) = start_for_uml(mtu, "") else {
            return;
        };
        let FileSizes { lines, .. } = FileSizes::LARGE;
        let words = [format!("mtu={mtu}"), format!("lines={lines}")];
        let vm = boot_with(&machine, &socket, "vm", &words);
        wait_until("no answer to a ping", || answers(&machine));
        is_whole(&FileSizes::LARGE.start(&machine, None).output());
        assert_eq!(holders(&machine, vm.pid()), Vec::<String>::new());
        drop(vm);
        machine.end();
        assert!(!socket.exists(), "the socket still exists");
    }
}

#[test]
fn a_vm_outlives_driver_manager_and_netd() {
    let Some((machine, socket)) = start_for_uml(1500, "") else {
        return;
    };
    let vm = boot(&machine, &socket, "vm", 1500);
    wait_until("no answer to a ping", || answers(&machine));
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    let shim = pid(&machine, "vm");
    for _ in 0..10 {
        for victim in ["driver", "grantway-manager", "grantway-netd"] {
            assert!(kill(process(&machine, core, victim)));
            wait_until("no answer to a ping", || answers(&machine));
        }
    }
    wait_until("a domain is missing", || {
        domains(&machine) == ["driver", "vm"]
    });
    assert_eq!(pid(&machine, "vm"), shim, "the shim was restarted");
    exchanges_files(&machine);
    assert_eq!(holders(&machine, vm.pid()), Vec::<String>::new());
    machine.end();
}

#[test]
fn a_vm_that_dies_is_followed_by_the_next() {
    let Some((machine, socket)) = start_for_uml(1500, "") else {
        return;
    };
    for life in ["first", "second", "third"] {
        let vm = boot(&machine, &socket, life, 1500);
        wait_until("no answer to a ping", || answers(&machine));
        assert_eq!(holders(&machine, vm.pid()), Vec::<String>::new());
    }
    machine.end();
}

#[test]
fn two_queue_pairs_carry_files() {
    let Some((machine, socket)) = start_for_uml(1500, "queue_pairs = 2") else {
        return;
    };
    let vm = boot_with(&machine, &socket, "vm", &["pairs=2".into()]);
    wait_until("no answer to a ping", || answers(&machine));
    let state = wait_for("the shim does not report", || {
        let state = machine.ask(&["status"])["vms"][0].clone();
        Some(state).filter(|state| !state.is_null())
    });
    assert_eq!(state["queue_pairs"], 2, "{state}");
    assert_eq!(state["interface"], "vm-0");
    assert_eq!(
        (&state["connected"], &state["link_up"]),
        (&true.into(), &true.into())
    );
    exchanges_files(&machine);
    assert_eq!(holders(&machine, vm.pid()), Vec::<String>::new());
    machine.end();
}

/// The front end reconnects, as QEMU does.
#[test]
fn ten_kills_of_each_part_are_survived() {
    require!(program("hostile-vm"));
    let Some((machine, socket)) = start(1500, "queue_pairs = 2") else {
        return;
    };
    let mut vmm = FrontEnd::start(&socket, &[VM, "2"]);
    wait_until("no answer to a ping", || answers(&machine));
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    for _ in 0..10 {
        for victim in ["driver", "vm", "grantway-manager", "grantway-netd"] {
            assert!(kill(process(&machine, core, victim)));
            wait_until("no answer to a ping", || answers(&machine));
        }
        drop(vmm);
        vmm = FrontEnd::start(&socket, &[VM, "2"]);
        wait_until("no answer to a ping", || answers(&machine));
        assert_eq!(holders(&machine, vmm.pid()), Vec::<String>::new());
    }
    let audit = machine.ask(&["grants"]);
    assert_eq!(audit["leaked"], 0, "{audit}");
    machine.end();
}

/// netd connects to the monitor's socket: for each shim, and for each monitor.
#[test]
fn a_listening_monitor_is_connected_again() {
    /// Ten intervals between netd's attempts.
    const ABSENCE: Duration = Duration::from_secs(2);
    /// Maximum CPU time of netd meanwhile, hundredths of a second.
    const TICKS_MAX: u64 = 20;
    require!(program("hostile-vm"));
    let Some((machine, socket)) = start(1500, "socket_mode = \"client\"") else {
        return;
    };
    let vmm = FrontEnd::start(&socket, &["listen", VM]);
    wait_until("no answer to a ping", || answers(&machine));
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    let shim = pid(&machine, "vm");
    assert!(kill(shim));
    wait_until("no answer to a ping", || answers(&machine));
    assert_ne!(pid(&machine, "vm"), shim);
    drop(vmm);
    fs::remove_file(&socket).unwrap();
    wait_until("the virtual machine is still connected", || {
        machine.ask(&["status"])["vms"][0]["connected"] == false
    });
    // netd repeats its attempts, but not without pauses.
    let netd = process(&machine, core, "grantway-netd");
    let before = cpu_ticks(netd);
    std::thread::sleep(ABSENCE);
    let ticks = cpu_ticks(netd) - before;
    assert!(ticks <= TICKS_MAX, "{ticks}");
    let vmm = FrontEnd::start(&socket, &["listen", VM]);
    wait_until("no answer to a ping", || answers(&machine));
    assert_eq!(holders(&machine, vmm.pid()), Vec::<String>::new());
    machine.end();
    assert!(socket.exists(), "the socket belongs to the monitor");
}

/// The machine was started with the guest, so its socket may be outside of `/run/grantway/vhost`.
#[test]
fn a_vm_is_attached_changed_and_detached() {
    const CLOSED: &str = "[[vif]]\n[[vif.rule]]\nname = \"no-ping\"\naction = \"deny\"\n\
                          direction = \"to-guest\"\nprotocol = \"icmp\"\n";
    require!(program("hostile-vm"));
    let Some((machine, socket)) = start(1500, "") else {
        return;
    };
    let wait_until_removed = || wait_until("the socket still exists", || !socket.exists());
    let owner = || fs::metadata(&socket).unwrap().uid();
    machine.ask(&["detach", "vm"]);
    wait_until_removed();
    let path = socket.display().to_string();
    machine.ask(&["attach", "vm", "--vhost-user", &path, "--owner", "daemon"]);
    assert_eq!(owner(), 1, "the number of daemon");
    let _vmm = FrontEnd::start(&socket, &[VM]);
    wait_until("no answer to a ping", || answers(&machine));

    let rules = machine.folder.path().join("rules.toml");
    let set = |text: &str| {
        fs::write(&rules, text).unwrap();
        machine.ask(&["rules", "vm", "--file", &rules.display().to_string()]);
    };
    set(CLOSED);
    assert!(!answers(&machine), "a rule denies pings");
    set("[[vif]]\n");
    wait_until("no answer to a ping", || answers(&machine));

    // The machine's file describes the guest without an owner.
    let file = machine.folder.path().join("machine.toml");
    let reloaded = machine.ask(&["reload", &file.display().to_string()]);
    assert_eq!(reloaded["done"], 2, "detach and attach: {reloaded}");
    assert_eq!(owner(), 0);
    wait_until("no answer to a ping", || answers(&machine));

    machine.ask(&["detach", "vm"]);
    wait_until_removed();
    assert_eq!(domains(&machine), ["driver"]);
    machine.end();
}

#[test]
fn an_idle_vm_costs_no_cpu() {
    const SECONDS: u64 = 2;
    /// Maximum CPU time: ten times the measured 0.1 to 0.2 ms in two seconds.
    const CPU_MAX_NS: u64 = SECONDS * 1_000_000;
    require!(program("hostile-vm"));
    let Some((machine, socket)) = start(1500, "") else {
        return;
    };
    let _vmm = FrontEnd::start(&socket, &[VM]);
    wait_until("no answer to a ping", || answers(&machine));
    let cpu_ns = || {
        let status = machine.ask(&["status"]);
        let domains = status["domains"].as_array().unwrap().iter();
        let shim = domains.filter(|domain| domain["name"] == "vm");
        let keys = ["cpu_ns", "agent_cpu_ns", "worker_cpu_ns"];
        shim.flat_map(|shim| keys.map(|key| shim[key].as_u64().unwrap()))
            .sum::<u64>()
    };
    // The test repeats this, because the wire's kernel announces itself for a few seconds.
    let mut least = u64::MAX;
    wait_until("an idle virtual machine costs CPU time", || {
        let before = cpu_ns();
        std::thread::sleep(Duration::from_secs(SECONDS));
        least = least.min(cpu_ns() - before);
        least <= CPU_MAX_NS
    });
    println!("{least} ns in {SECONDS} s");
    machine.end();
}

#[test]
fn a_hostile_monitor_disturbs_no_other_guest() {
    require!(program("hostile-vm"));
    let evil = tempfile::tempdir().unwrap().keep().join("evil.sock");
    let more = format!(
        "[[guest]]\nname = \"evil\"\n[[guest.vif]]\nendpoint = \"vhost-user\"\n\
         socket = \"{}\"\n",
        evil.display()
    );
    let Some((machine, socket)) = start(1500, &more) else {
        return;
    };
    let vmm = FrontEnd::start(&socket, &[VM]);
    wait_until("no answer to a ping", || answers(&machine));
    let before = ["driver", "vm", "evil"].map(|name| pid(&machine, name));
    let hostile: Vec<_> = (1..=2)
        .map(|seed| FrontEnd::start(&evil, &["hostile", &seed.to_string()]))
        .collect();
    let pings = machine.run(0, "ping", &["-c", "100", "-i", "0.02", "-W", "60", VM]);
    assert!(text(&pings.stdout).contains(" 0% packet loss"), "{pings:?}");
    wait_until("no hostile monitor has connected", || {
        let stat = machine.ask(&["stat", "evil"]);
        let endpoint = &stat["evil"]["vifs"]["0"]["endpoint"];
        endpoint["vm_connections"].as_u64() > Some(0)
    });
    assert_eq!(holders(&machine, vmm.pid()), Vec::<String>::new());
    drop(hostile);
    assert_eq!(
        before,
        ["driver", "vm", "evil"].map(|name| pid(&machine, name))
    );
    machine.end();
}
