//! The command and the world outside.

use crate::world::{OUTSIDE, SYSTEM, World};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use testing::{Killed, accept, end_of, patient, wait_for, wait_until};

/// Names the server of [`a_server_that_the_command_is`].
const SERVER: &str = "GRANTWAY_TEST_SERVER";

/// Address, route and names are there when the command starts, and what it sends has the system's
/// address.
#[test]
fn a_web_server_is_found_by_its_name() {
    let Some(world) = World::new(&["curl"]) else {
        return;
    };
    world.serve_names();
    let (_, port) = world
        .serve_web()
        .split_once(':')
        .map(|(a, p)| (a.to_owned(), p.to_owned()))
        .unwrap();
    let url = format!("http://web.test:{port}/");
    let args = [
        "--dns",
        OUTSIDE,
        "--report",
        "--",
        "curl",
        "-sS",
        "--max-time",
        "120",
        &url,
    ];
    let ran = world.run(&args);
    assert_eq!(
        (ran.code, ran.out),
        (0, format!("you are {SYSTEM}\n")),
        "{}",
        ran.err
    );
    for part in [
        "of the guest's",
        "0 grants or frames unaccounted for",
        "the command:",
        "is gone",
    ] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    assert!(
        ran.err
            .lines()
            .any(|line| line.contains("from it") && !line.contains("from it 0"))
    );
}

#[test]
fn packets_of_any_kind_pass() {
    let Some(world) = World::new(&["ping"]) else {
        return;
    };
    let ping = ["--", "ping", "-c", "2", "-i", "0.2", "-w", "60", OUTSIDE];
    let ran = world.run(&ping);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("2 received"), "{ran:?}");
    // The system itself, by an address that only its routes lead to.
    let ran = world.run(&[
        "--ip",
        "10.9.0.1/24",
        "--",
        "ping",
        "-c",
        "1",
        "-w",
        "60",
        "10.9.0.2",
    ]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn the_command_has_what_it_was_given() {
    let Some(world) = World::new(&["ip"]) else {
        return;
    };
    let script = "ip -o address show dev eth0; ip route; ip link show dev eth0; \
                  cat /etc/resolv.conf; ls /sys/class/net; echo pid-$$ $(cat /proc/$$/comm); env";
    let ran = world.run(&[
        "--ip",
        "10.9.0.2/24",
        "--dns",
        "192.0.2.9",
        "--dns",
        "192.0.2.8",
        "--mtu",
        "1400",
        "--",
        "sh",
        "-c",
        script,
    ]);
    for part in [
        "inet 10.9.0.2/24",
        "default via 10.9.0.1",
        "mtu 1400",
        "nameserver 192.0.2.9\nnameserver 192.0.2.8\n",
        "\neth0\nlo\n",
        "pid-2 sh\n",
    ] {
        assert!(ran.out.contains(part), "{part}: {ran:?}");
    }
    assert!(
        !ran.out.contains("up0") && !ran.out.contains("GRANTWAY_RUN_INSIDE"),
        "{ran:?}"
    );
    // The mounts are the command's alone.
    let resolver = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    assert!(!resolver.contains("192.0.2.9"), "{resolver}");
}

#[test]
fn without_an_uplink_there_is_nobody() {
    let Some(world) = World::new(&["ip", "ping"]) else {
        return;
    };
    let script = format!("ip -o address show dev eth0; ip route; ping -c 1 -w 2 {OUTSIDE}");
    let ran = world.run(&["--no-uplink", "--", "sh", "-c", &script]);
    assert!(
        ran.out.contains("inet 10.") && !ran.out.contains("default"),
        "{ran:?}"
    );
    assert_ne!(ran.code, 0, "{ran:?}");
}

#[test]
fn two_have_different_addresses() {
    let Some(world) = World::new(&["ip"]) else {
        return;
    };
    let show = [
        "--",
        "sh",
        "-c",
        "ip -o -4 address show dev eth0; read line",
    ];
    let start = || {
        let grantway = crate::world::grantway();
        let args = [&["run"], &show[..]].concat();
        let mut command = world.command(&grantway, &args);
        world.spawn(command.stdin(std::process::Stdio::piped()))
    };
    let mut both = [start(), start()];
    let [a, b] = both.each_mut().map(|run| run.line_with("inet"));
    let address = |line: &str| line.split_whitespace().nth(3).map(str::to_owned).unwrap();
    assert_ne!(address(&a), address(&b));
    for mut run in both {
        run.write("\n");
        assert_eq!(run.finish().code, 0);
    }
    world.wait_until_clean();
}

/// Whether somebody listens on iperf3's port in the calling thread's namespace.
fn iperf3_listens() -> bool {
    let sockets = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let mut lines = sockets.lines();
    lines.any(|line| line.contains(":1451 ") && line.contains(" 0A "))
}

#[test]
fn streams_pass_in_both_directions() {
    let Some(world) = World::new(&["iperf3"]) else {
        return;
    };
    for more in [&[][..], &["--reverse"]] {
        let serve = || {
            let mut server = Command::new("iperf3");
            server.args(["-s", "-1", "-B", OUTSIDE]);
            server.stdout(Stdio::null()).spawn().unwrap()
        };
        let mut server = Killed(world.outside.enter(serve).unwrap());
        wait_until("nobody listens", || {
            world.outside.enter(iperf3_listens).unwrap()
        });
        let args = ["--", "iperf3", "-c", OUTSIDE, "-n", "8M"];
        let ran = world.run(&[&args, more].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.out.contains("receiver"), "{ran:?}");
        end_of(&mut server.0);
    }
    world.wait_until_clean();
}

/// Not a test of its own: the command of the next one. It answers one connection.
#[test]
fn a_server_that_the_command_is() {
    if std::env::var_os(SERVER).is_none() {
        return;
    }
    let listener = TcpListener::bind("0.0.0.0:80").unwrap();
    let mut stream = accept(&listener);
    stream.write_all(b"from the command").unwrap();
}

#[test]
fn a_port_of_the_system_leads_to_the_command() {
    let Some(world) = World::new(&[]) else { return };
    let test = std::env::current_exe().unwrap().display().to_string();
    let name = "outside::a_server_that_the_command_is";
    let args = [
        "run",
        "--forward",
        "tcp:8080=80",
        "--",
        &test,
        "--exact",
        name,
    ];
    let grantway = crate::world::grantway();
    let mut command = world.command(&grantway, &args);
    let run = world.spawn(command.env(SERVER, "1"));
    let connect = || TcpStream::connect((SYSTEM, 8080)).ok();
    // Nobody listens until the command does.
    let stream = wait_for("no server", || world.outside.enter(connect).unwrap());
    let mut stream = patient(stream);
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "from the command");
    assert_eq!(run.finish().code, 0);
    world.wait_until_clean();
}

#[test]
fn networks_that_the_system_has_are_refused() {
    let Some(world) = World::new(&[]) else { return };
    for ip in ["192.0.2.130/25", "192.0.2.7/24", "192.0.0.1/16"] {
        let ran = world.run(&["--ip", ip, "--", "true"]);
        assert!(
            ran.code == 125 && ran.err.contains("of interface up0"),
            "{ran:?}"
        );
    }
    let ran = world.run(&["--ip", "192.0.2.130/25", "--allow-overlap", "--", "true"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}
