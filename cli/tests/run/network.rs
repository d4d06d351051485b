//! The command's connections to the outside.

use crate::testbed::{OUTSIDE, SYSTEM, Testbed};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use testing::{
    FORGER, KillOnDrop, accept, forged_frame_drops, wait_for, wait_for_exit, wait_until,
    with_timeout,
};

/// The environment variable that makes [`the_server_of_other_tests`] run its server.
const SERVER: &str = "GRANTWAY_TEST_SERVER";

/// The command has an address, a route and name servers when it starts. Its packets have the
/// system's address.
#[test]
fn a_web_server_is_found_by_its_name() {
    let Some(world) = Testbed::new(&["curl"]) else {
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
        "has ended",
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
    let Some(world) = Testbed::new(&["ping"]) else {
        return;
    };
    let ping = ["--", "ping", "-c", "2", "-i", "0.2", "-w", "60", OUTSIDE];
    let ran = world.run(&ping);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("2 received"), "{ran:?}");
    // The command reaches the system itself by an address that only the system's routes lead to.
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
fn options_set_up_the_command() {
    let Some(world) = Testbed::new(&["ip"]) else {
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
        "\neth0\n",
        "\nlo\n",
        "pid-2 sh\n",
    ] {
        assert!(ran.out.contains(part), "{part}: {ran:?}");
    }
    assert!(
        !ran.out.contains("up0") && !ran.out.contains("GRANTWAY_RUN_INSIDE"),
        "{ran:?}"
    );
    // The mounts are visible only to the command.
    let resolver = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    assert!(!resolver.contains("192.0.2.9"), "{resolver}");
}

#[test]
fn without_an_uplink_nothing_is_reachable() {
    let Some(world) = Testbed::new(&["ip", "ping"]) else {
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
    let Some(world) = Testbed::new(&["ip"]) else {
        return;
    };
    let show = [
        "--",
        "sh",
        "-c",
        "ip -o -4 address show dev eth0; read line",
    ];
    let start = || {
        let grantway = crate::testbed::grantway();
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

/// A command is guarded like guests of the file.
#[test]
fn the_command_is_guarded() {
    let Some(world) = Testbed::new(&["python3"]) else {
        return;
    };
    let program = crate::testbed::grantway();
    let forge = r#"python3 -c "$1" eth0 10.9.0.2 10.9.0.1; echo "sent $?"; read line"#;
    let args = [
        "run",
        "--name",
        "m",
        "--ip",
        "10.9.0.2/24",
        "--",
        "sh",
        "-c",
        forge,
        "sh",
        FORGER,
    ];
    let mut command = world.command(&program, &args);
    let mut run = world.spawn(command.stdin(Stdio::piped()));
    assert_eq!(run.line_with("sent"), "sent 0");
    wait_until("not every forged frame is dropped", || {
        let args = ["stat", "driver", "--name", "m", "--json"];
        let stat = world.spawn(&mut world.command(&program, &args)).finish();
        let Ok(stat) = serde_json::from_str::<Value>(&stat.out) else {
            return false;
        };
        let drops = &stat["driver"]["drops"];
        println!("{drops}");
        forged_frame_drops().all(|(reason, count)| drops[reason].as_u64() >= Some(count))
    });
    run.write("\n");
    assert_eq!(run.finish().code, 0);
    world.wait_until_clean();
}

/// Returns whether a server listens on iperf3's port in the calling thread's namespace.
fn iperf3_listens() -> bool {
    let sockets = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let mut lines = sockets.lines();
    lines.any(|line| line.contains(":1451 ") && line.contains(" 0A "))
}

#[test]
fn streams_pass_in_both_directions() {
    let Some(world) = Testbed::new(&["iperf3"]) else {
        return;
    };
    for more in [&[][..], &["--reverse"]] {
        let serve = || {
            let mut server = Command::new("iperf3");
            server.args(["-s", "-1", "-B", OUTSIDE]);
            server.stdout(Stdio::null()).spawn().unwrap()
        };
        let mut server = KillOnDrop(world.outside.enter(serve).unwrap());
        wait_until("nobody listens", || {
            world.outside.enter(iperf3_listens).unwrap()
        });
        let args = ["--", "iperf3", "-c", OUTSIDE, "-n", "8M"];
        let ran = world.run(&[&args, more].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.out.contains("receiver"), "{ran:?}");
        wait_for_exit(&mut server.0);
    }
    world.wait_until_clean();
}

/// The server that the next tests run as their command. It accepts one connection and sends as many
/// bytes as an environment variable specifies. Without this variable the test does nothing.
#[test]
fn the_server_of_other_tests() {
    let Ok(bytes) = std::env::var(SERVER) else {
        return;
    };
    let listener = TcpListener::bind("0.0.0.0:80").unwrap();
    let mut stream = accept(&listener);
    stream.write_all(&vec![7; bytes.parse().unwrap()]).unwrap();
}

#[test]
fn a_port_is_forwarded_to_the_command() {
    served(16, Duration::ZERO);
}

/// The client is slow, so the command exits while much of its data is still in the socket's buffer.
#[test]
fn data_arrives_after_the_command_has_ended() {
    served(1 << 20, Duration::from_millis(20));
}

/// Runs a command that sends `bytes` bytes at a forwarded port and then exits immediately. The
/// client pauses before each read, and must receive all bytes.
fn served(bytes: usize, pause: Duration) {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let test = std::env::current_exe().unwrap().display().to_string();
    let name = "network::the_server_of_other_tests";
    let args = [
        "run",
        "--forward",
        "tcp:8080=80",
        "--",
        &test,
        "--exact",
        name,
    ];
    let grantway = crate::testbed::grantway();
    let mut command = world.command(&grantway, &args);
    let run = world.spawn(command.env(SERVER, bytes.to_string()));
    let connect = || TcpStream::connect((SYSTEM, 8080)).ok();
    // The command starts to listen after some time.
    let stream = wait_for("no server", || world.outside.enter(connect).unwrap());
    let mut stream = with_timeout(stream);
    let (mut received, mut part) = (0, vec![0; 32 << 10]);
    while let count @ 1.. = stream.read(&mut part).unwrap() {
        received += count;
        thread::sleep(pause);
    }
    assert_eq!(received, bytes);
    assert_eq!(run.finish().code, 0);
    world.wait_until_clean();
}

#[test]
fn networks_of_the_system_are_rejected() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
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

/// Rules of the system may drop the packets that are forwarded for the command.
#[test]
fn a_firewall_that_drops_packets_is_reported() {
    const CHAIN: &str = "{ type filter hook forward priority 0 ; policy drop ; }";
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let args = ["--ip", "10.9.0.2/24", "--", "true"];
    let ran = world.run(&args);
    assert!(ran.code == 0 && !ran.err.contains("drops"), "{ran:?}");
    let nft = |words: &[&str]| {
        let ran = world.spawn(&mut world.command("nft", words)).finish();
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
    };
    nft(&["add", "table", "ip", "filter"]);
    nft(&["add", "chain", "ip", "filter", "FORWARD", CHAIN]);
    let ran = world.start(&args).finish();
    assert_eq!(ran.code, 0, "{ran:?}");
    for part in ["table ip filter drops", "iptables -I FORWARD -i "] {
        assert!(ran.err.contains(part), "{part}: {ran:?}");
    }
    nft(&["delete", "table", "ip", "filter"]);
    world.wait_until_clean();
}
