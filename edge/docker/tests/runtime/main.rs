//! Calls the driver as Docker does, with a machine.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;
use testing::{KillOnDrop, require};

const DRIVER: &str = env!("CARGO_BIN_EXE_grantway-docker");

/// Held while a script runs. At its end, each script removes the control groups of every Docker.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a script of this folder, with a temporary folder and in new namespaces.
#[track_caller]
fn run_script(name: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let here = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/runtime"));
    testing::run_script(&here.join(name), DRIVER.as_ref());
}

#[test]
fn containers_of_docker_are_guests() {
    require!(
        machine,
        program("grantway"),
        cni_plugin("portmap"),
        tool("dockerd"),
        tool("containerd"),
        tool("runc"),
        tool("busybox"),
        tool("curl"),
        tool("iptables-save"),
        tool("nsenter"),
        tool("python3"),
        tool("unshare")
    );
    run_script("docker.sh");
}

#[test]
fn the_documented_commands_run_on_a_new_system() {
    require!(
        machine,
        program("grantway"),
        cni_plugin("portmap"),
        tool("dockerd"),
        tool("containerd"),
        tool("runc"),
        tool("busybox"),
        tool("curl"),
        tool("ip"),
        tool("nft"),
        tool("iptables"),
        tool("unshare")
    );
    run_script("docs.sh");
}

/// systemd passes the listening socket as standard input.
#[test]
fn a_passed_socket_is_served() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let driver = Command::new(DRIVER)
        .arg("--state")
        .arg(folder.path().join("state"))
        .arg("--run")
        .arg(folder.path().join("run"))
        .stdin(OwnedFd::from(listener))
        .spawn();
    let _driver = KillOnDrop(driver.unwrap());
    let mut stream = UnixStream::connect(&socket).unwrap();
    let request = b"POST /Plugin.Activate HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("NetworkDriver"), "{answer}");
}

/// systemd's units, with the test's program.
#[test]
fn the_units_are_valid_and_confine() {
    require!(tool("systemd-analyze"));
    let folder = TempDir::new().unwrap();
    let service = include_str!("../../../../contrib/docker/grantway-docker.service");
    let socket = include_str!("../../../../contrib/docker/grantway-docker.socket");
    let service = service.replace("/usr/libexec/grantway/grantway-docker", DRIVER);
    let files = [
        ("grantway-docker.service", service.as_str()),
        ("grantway-docker.socket", socket),
    ];
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let analyze = |args: &[&str], name: &str| {
        let mut command = Command::new("systemd-analyze");
        let path = folder.path().join(name);
        let done = command.args(args).arg(path).output().unwrap();
        let said = [done.stdout, done.stderr].concat();
        (done.status.success(), String::from_utf8(said).unwrap())
    };
    let verified = analyze(&["verify", "--man=no"], "grantway-docker.socket");
    assert_eq!(verified, (true, String::new()));
    let args = ["security", "--offline=yes", "--no-pager", "--threshold=49"];
    let (is_enough, said) = analyze(&args, "grantway-docker.service");
    assert!(is_enough, "{said}");
}
