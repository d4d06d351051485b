//! Starting and ending domains.

mod common;

use abi::version::VERSION;
use common::{HOSTILE, World, alone, descriptors, gone_within, start_by, status};
use std::path::Path;
use std::time::Duration;
use testing::PATIENCE;

#[test]
fn a_rust_program_starts_confined() {
    let Some(_alone) = alone() else { return };
    let mut world = World::new();
    assert_eq!(
        world.printed(),
        "hostile: up as [\"hostile\", \"one\", \"two\"]\n"
    );
    println!("missing: {:?}", world.domain.missing);
    let (pid, agent) = (world.domain.pid, world.domain.agent_pid);
    assert!(descriptors(pid).is_none_or(|open| open == [0, 1, 2, 3, 4]));
    assert!(descriptors(agent).is_none_or(|open| open == [8, 9]));
    for pid in [pid, agent] {
        assert_eq!(status(pid, "NoNewPrivs"), "1");
        assert_eq!(status(pid, "Seccomp"), "2");
        assert_eq!(status(pid, "Seccomp_filters"), "1");
        assert_eq!(status(pid, "CapEff"), "0000000000000000");
        assert_eq!(status(pid, "CapPrm"), "0000000000000000");
        // Readable only with the right to trace the process.
        if let Ok(slack) = std::fs::read_to_string(format!("/proc/{pid}/timerslack_ns")) {
            assert_eq!(slack.trim(), "1");
        }
    }
    assert!(!gone_within(&world.domain.pidfd, Duration::from_millis(1)));
    world.end();
    assert!(world.ended());
}

/// S-2: a domain started by a monitor of another version reports the error and exits.
#[test]
fn a_domain_of_another_version_exits_with_an_error() {
    let Some(_alone) = alone() else { return };
    let path = Path::new(HOSTILE);
    let mut world = start_by(u64::from(VERSION) + 1, path, "hostile", &[]).expect("a start");
    assert!(gone_within(&world.domain.pidfd, PATIENCE));
    let said = world.printed();
    assert!(said.contains("both must be of one build"), "{said}");
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
    sandbox::check(Path::new(HOSTILE)).expect("the right one");
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
