//! Virtual machines of QEMU: migration, kills, added memory, suspend, kexec.

use super::qemu::{MAC, Qemu, command_line, memory, write_initrd};
use super::uml::sh;
use super::{FileSizes, HOST, VM, answers, exchanges_files, holders, is_whole, process};
use crate::machine::{Machine, text};
use crate::processes::{kill, pid};
use netdev::netns::in_netns;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::{Running, kernel, require, wait_for, wait_until};

/// Feature bit of mergeable receive buffers.
const MRG_RXBUF: u64 = 1 << 15;
/// A program for the virtual machine that starts another kernel.
const KEXEC: &str = include_str!("kexec.c");
/// The bridge to which both machines are connected.
const LAN: &str = "lan";

/// Returns the configuration of a machine with a wire at the bridge.
fn config(netns: &str, wire: &str, socket: &Path) -> String {
    format!(
        "[[nic]]\nname = \"wire\"\nkind = \"tap\"\nifname = \"{wire}\"\nnetns = \"{netns}\"\n\
         uplink = \"{LAN}\"\n[[guest]]\nname = \"vm\"\n[[guest.vif]]\n\
         endpoint = \"vhost-user\"\nsocket = \"{}\"\nmac = \"{MAC}\"\n",
        socket.display()
    )
}

fn ip(words: &str) {
    let mut command = Command::new("ip");
    assert!(command.args(words.split(' ')).status().unwrap().success());
}

fn socket() -> PathBuf {
    tempfile::tempdir().unwrap().keep().join("vm.sock")
}

/// Returns a machine, the path of its network namespace, and the socket of its virtual machine.
fn start() -> Option<(Machine, String, PathBuf)> {
    require!(
        tool("qemu-system-x86_64"),
        tool("busybox"),
        tool("tcpdump"),
        kernel
    );
    let (socket, mut netns) = (socket(), String::new());
    let machine = Machine::start(&["ping", "ip", "python3"], &["left"], |paths| {
        netns.clone_from(&paths[0]);
        let bridge = || {
            ip(&format!("link add {LAN} type bridge"));
            ip(&format!("address add {HOST}/24 dev {LAN}"));
            ip(&format!("link set {LAN} up"));
        };
        in_netns(&netns, bridge).unwrap();
        config(&netns, "left", &socket)
    })?;
    Some((machine, netns, socket))
}

fn boot(machine: &Machine, name: &str, socket: &Path, more: &[&str]) -> Qemu {
    let folder = machine.folder.path().join(name);
    Qemu::start(folder, socket, &format!("{VM}/24"), more)
}

#[test]
fn a_vm_moves_to_another_machine_under_streams() {
    let Some((left, netns, socket_left)) = start() else {
        return;
    };
    let socket_right = socket();
    let right = left.beside(&config(&netns, "right", &socket_right));
    // tcpdump waits for one announcement at the start and one after the migration.
    let words = ["-c", "2", "-n", "-i", LAN, "ether proto 0x8035"];
    let mut announced = left.spawn(0, "tcpdump", &words);
    let mut from = boot(&left, "from", &socket_left, &[]);
    from.wait_until_up();
    wait_until("no answer to a ping", || answers(&left));

    let (streams, end) = streams(&left);
    assert!(!announced.is_over(), "too many announcements");
    let way = left.folder.path().join("way");
    let way = format!("unix:{}", way.display());
    let to = boot(&left, "to", &socket_right, &["-incoming", &way]);
    to.monitor("info status");
    from.monitor("migrate_set_parameter max-bandwidth 1G");
    from.monitor(&format!("migrate -d {way}"));
    wait_until("the virtual machine does not migrate", || {
        let state = from.monitor("info migrate");
        assert!(!state.contains("failed"), "{state}");
        state.contains("Migration status: completed")
    });
    drop(from);
    wait_until("no answer to a ping", || answers(&left));
    fs::write(&end, "").unwrap();
    is_whole(&streams.output());
    exchanges_files(&left);
    let announced = announced.output();
    assert!(text(&announced.stdout).contains("Reverse"), "{announced:?}");
    assert_eq!(holders(&right, to.pid()), Vec::<String>::new());
    right.end();
    left.end();
}

/// Starts streams that end when a file appears. Also returns the path of the file.
fn streams(machine: &Machine) -> (Running, PathBuf) {
    let end = machine.folder.path().join("end");
    let mut streams = FileSizes::SMALL.start(machine, Some(&end));
    streams.line_with("connected");
    (streams, end)
}

#[test]
fn streams_outlive_every_process_but_the_vms() {
    let Some((machine, _, socket)) = start() else {
        return;
    };
    let mut vm = boot(&machine, "vm", &socket, &[]);
    vm.wait_until_up();
    wait_until("no answer to a ping", || answers(&machine));
    let (streams, end) = streams(&machine);
    let core = machine.ask(&["status"])["pid"].as_u64().unwrap();
    for _ in 0..3 {
        for victim in ["vm", "driver", "grantway-manager", "grantway-netd"] {
            assert!(kill(process(&machine, core, victim)));
            wait_until("no answer to a ping", || answers(&machine));
        }
    }
    fs::write(&end, "").unwrap();
    is_whole(&streams.output());
    assert_eq!(holders(&machine, vm.pid()), Vec::<String>::new());
    drop(vm);

    // The next virtual machine has no mergeable buffers.
    let off = ["-global", "virtio-net-device.mrg_rxbuf=off"];
    let mut next = boot(&machine, "next", &socket, &off);
    next.wait_until_up();
    wait_until("no answer to a ping", || answers(&machine));
    let features = wait_for("the shim does not report its features", || {
        machine.ask(&["status"])["vms"][0]["features"].as_u64()
    });
    assert_eq!(features & MRG_RXBUF, 0);
    exchanges_files(&machine);
    assert_eq!(holders(&machine, next.pid()), Vec::<String>::new());
    machine.end();
}

#[test]
fn a_vm_gets_more_memory_and_reboots() {
    let Some((machine, _, socket)) = start() else {
        return;
    };
    let mut vm = boot(&machine, "vm", &socket, &[]);
    vm.wait_until_up();
    wait_until("no answer to a ping", || answers(&machine));

    let maps = format!("/proc/{}/maps", pid(&machine, "vm"));
    let regions = || {
        fs::read_to_string(&maps)
            .unwrap()
            .matches("/memfd:memory")
            .count()
    };
    let before = regions();
    vm.monitor(&format!("object_add {}", memory("more", 128 << 20)));
    vm.monitor("device_add pc-dimm,id=dimm,memdev=more");
    wait_until("the shim does not map the memory", || regions() > before);
    exchanges_files(&machine);

    vm.reset();
    wait_until("no answer to a ping", || answers(&machine));
    exchanges_files(&machine);

    assert_eq!(holders(&machine, vm.pid()), Vec::<String>::new());
    machine.end();
}

/// Executes a command in the virtual machine, without waiting for its end.
fn execute(machine: &Machine, command: &str) {
    let script = format!("echo \"$0\" | busybox nc {VM} 6003");
    let command = format!("({command}) >/dev/null 2>&1 &");
    // The virtual machine's program listens again a moment after each connection.
    wait_until("the virtual machine takes no command", || {
        let run = machine.run(0, "sh", &["-c", &script, &command]);
        run.status.success()
    });
}

/// A suspended guest resets the device when it wakes up. After kexec the next kernel finds the
/// device as its predecessor has left it.
#[test]
fn a_vm_is_suspended_and_starts_another_kernel() {
    require!(tool("cc"));
    let Some((machine, _, socket)) = start() else {
        return;
    };
    let folder = machine.folder.path().join("vm");
    let line = write_next_kernel(&folder);
    let mut vm = boot(&machine, "vm", &socket, &[]);
    vm.wait_until_up();
    wait_until("no answer to a ping", || answers(&machine));

    execute(&machine, "sleep 0.5; echo mem > /sys/power/state");
    wait_until("the virtual machine is not suspended", || {
        vm.monitor("info status").contains("suspended")
    });
    assert!(!answers(&machine), "a suspended machine answers");
    vm.monitor("system_wakeup");
    wait_until("no answer to a ping", || answers(&machine));
    exchanges_files(&machine);

    execute(
        &machine,
        &format!("sleep 0.5; kexec /next/kernel /next/initrd '{line}'"),
    );
    vm.wait_for_boots(2);
    wait_until("no answer to a ping", || answers(&machine));
    exchanges_files(&machine);

    assert_eq!(holders(&machine, vm.pid()), Vec::<String>::new());
    machine.end();
}

/// Adds a kernel, its initial file system and a program that starts it to the initial file system
/// of the virtual machine in `folder`. Returns the kernel's command line.
fn write_next_kernel(folder: &Path) -> String {
    let kernel = kernel().unwrap();
    let next = folder.join("root/next");
    for new in [&next, &folder.join("root/bin"), &folder.join("inner")] {
        fs::create_dir_all(new).unwrap();
    }
    write_initrd(&folder.join("inner"), &kernel);
    fs::copy(folder.join("inner/initrd"), next.join("initrd")).unwrap();
    fs::copy(kernel.image, next.join("kernel")).unwrap();
    fs::write(folder.join("kexec.c"), KEXEC).unwrap();
    sh(folder, "cc -static -O1 -o root/bin/kexec kexec.c");
    command_line(&format!("{VM}/24"))
}
