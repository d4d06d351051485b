//! Starts and exits of domains.

mod common;

use abi::version::VERSION;
use common::{
    HOSTILE, TestDomain, descriptors, exits_within, serialize, start_with_version, status,
};
use std::path::Path;
use std::time::Duration;
use testing::TIMEOUT;

#[test]
fn a_rust_program_starts_confined() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    assert_eq!(
        target.read_console(),
        "hostile: started as [\"hostile\", \"one\", \"two\"]\n"
    );
    println!("missing: {:?}", target.domain.missing);
    let (pid, agent) = (target.domain.pid, target.domain.agent_pid);
    assert!(descriptors(pid).is_none_or(|open| open == [0, 1, 2, 3, 4]));
    assert!(descriptors(agent).is_none_or(|open| open == [8, 9]));
    // In a container, this process has filters, too.
    let filters = |pid| {
        status(pid, "Seccomp_filters")
            .parse::<u32>()
            .expect("a number")
    };
    let inherited = filters(std::process::id() as i32);
    for pid in [pid, agent] {
        assert_eq!(status(pid, "NoNewPrivs"), "1");
        assert_eq!(status(pid, "Seccomp"), "2");
        assert_eq!(filters(pid), inherited + 1);
        assert_eq!(status(pid, "CapEff"), "0000000000000000");
        assert_eq!(status(pid, "CapPrm"), "0000000000000000");
        // Only a process with the right to trace the domain can read this.
        if let Ok(slack) = std::fs::read_to_string(format!("/proc/{pid}/timerslack_ns")) {
            assert_eq!(slack.trim(), "1");
        }
    }
    assert!(!exits_within(
        &target.domain.pidfd,
        Duration::from_millis(1)
    ));
    target.kill();
    assert!(target.has_exited());
}

/// S-2: a domain started by a monitor of another version reports the error and exits.
#[test]
fn a_domain_of_another_version_exits_with_an_error() {
    let Some(_guard) = serialize() else { return };
    let path = Path::new(HOSTILE);
    let mut target =
        start_with_version(u64::from(VERSION) + 1, path, "hostile", &[]).expect("a start");
    assert!(exits_within(&target.domain.pidfd, TIMEOUT));
    let printed_text = target.read_console();
    assert!(
        printed_text.contains("both must be of one build"),
        "{printed_text}"
    );
}

/// S-1: the monitor finds the version in the file.
#[test]
fn a_program_of_another_version_is_not_started() {
    let dir = tempfile::tempdir().expect("a folder");
    let changed = |change: &dyn Fn(&mut [u8])| {
        let mut image = std::fs::read(HOSTILE).expect("a program");
        let owner = b"Grantway\0\0\0\0";
        let places = image.windows(owner.len()).enumerate();
        // The note's header precedes its owner.
        let is_note =
            |image: &[u8], at: usize| image[at - 12..at] == [9, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0];
        let at: Vec<_> = places
            .filter(|(at, bytes)| bytes == owner && *at >= 12 && is_note(&image, *at))
            .map(|(at, _)| at)
            .collect();
        at.iter().for_each(|&at| change(&mut image[at..at + 16]));
        let path = dir.path().join("program");
        std::fs::write(&path, image).expect("written");
        sandbox::check(&path).unwrap_err().to_string()
    };
    sandbox::check(Path::new(HOSTILE)).expect("the current version");
    let later = changed(&|note| note[12..].copy_from_slice(&77u32.to_le_bytes()));
    assert!(
        later.ends_with(&format!(
            "program: the program of a domain of version 77; this monitor starts only version \
             {VERSION}"
        )),
        "{later}"
    );
    let none = changed(&|note| note[0] = b'g');
    assert!(none.contains("not the program of a domain"), "{none}");
}
