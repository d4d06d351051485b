//! Processes that a command leaves running.

use crate::signals::{sleeping, unique_sleep};
use crate::testbed::Testbed;

#[test]
fn leftover_processes_end_with_the_command() {
    let Some(world) = Testbed::new(&[]) else {
        return;
    };
    let [a, b] = [1, 2].map(unique_sleep);
    let script = format!("sleep {a} & (setsid sleep {b} &) ; exit 4");
    let ran = world.run(&["--", "sh", "-c", &script]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert_eq!(sleeping(&[a, b]), [""; 0]);
}

/// `--wait` waits for the last process, which can use the network until then.
#[test]
fn wait_waits_for_the_last_process() {
    let Some(world) = Testbed::new(&["ping"]) else {
        return;
    };
    let later = format!(
        "sleep 0.5; ping -c 1 -w 60 {} > /dev/null && echo late",
        crate::testbed::OUTSIDE
    );
    let script = format!("(setsid sh -c '{later}' &) ; exit 4");
    let ran = world.run(&["--wait", "--", "sh", "-c", &script]);
    assert_eq!((ran.code, ran.out.as_str()), (4, "late\n"), "{ran:?}");
}
