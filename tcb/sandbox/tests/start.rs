//! Starting and ending domains.

mod common;

use common::{World, alone, descriptors, gone_within, status};
use std::time::Duration;

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
        // Only who may trace it may read this.
        if let Ok(slack) = std::fs::read_to_string(format!("/proc/{pid}/timerslack_ns")) {
            assert_eq!(slack.trim(), "1");
        }
    }
    assert!(!gone_within(&world.domain.pidfd, Duration::from_millis(1)));
    assert!(world.domain.kill());
    assert!(world.ended());
}
