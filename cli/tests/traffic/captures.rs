//! Captures of streams, read by other programs.

use crate::machine::{Machine, text};
use crate::programs::{DB, FOR_FILES, IPV4, NAMES, SomeFile, WEB, WIRE, config};
use std::process::Command;
use testing::require;

/// Returns the number of frames whose TCP checksum has this status: `0` for bad, `1` for good.
fn with_status(statuses: &str, status: &str) -> usize {
    statuses.lines().filter(|line| *line == status).count()
}

/// Captures also contain segments of 64 KB, whose checksums are not computed in transit.
#[test]
fn captured_checksums_are_right() {
    require!(tool("tshark"));
    let config = |namespaces: &[String]| config("", namespaces);
    let Some(machine) = Machine::start(FOR_FILES, &NAMES, config) else {
        return;
    };
    let file = SomeFile::new(&machine, 5_000_000);
    let path = machine.folder.path().join("web.pcapng");
    let path = path.display().to_string();
    for (from, to) in [(WEB, DB), (DB, WEB), (WEB, WIRE), (WIRE, WEB)] {
        let args = [
            "capture",
            "web",
            "-w",
            &path,
            "--force",
            "--snaplen",
            "66000",
        ];
        let mut capture = machine.start_grantway(&[&args[..], &["--count", "200"]].concat());
        while !capture.is_over() {
            file.carry(from, (to, IPV4[from]), &[]);
        }
        let run = capture.output();
        assert!(run.status.success(), "{run:?}");
        let mut tshark = Command::new("tshark");
        tshark.args([
            "-r",
            &path,
            // Linux and Grantway write 0xffff instead of 0. The two are equivalent, but tshark
            // accepts only 0.
            "-Y",
            "tcp && tcp.checksum != 0xffff",
            "-T",
            "fields",
            "-e",
            "tcp.checksum.status",
        ]);
        for layer in ["ip", "tcp", "udp"] {
            tshark.args(["-o", &format!("{layer}.check_checksum:TRUE")]);
        }
        let statuses = text(&tshark.output().unwrap().stdout);
        assert_eq!(with_status(&statuses, "0"), 0, "{from} to {to}: {statuses}");
        assert!(
            with_status(&statuses, "1") > 20,
            "{from} to {to}: {statuses}"
        );
    }
    machine.end();
}
