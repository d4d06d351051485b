//! What a command leaves running.

use crate::signals::{seconds, sleeping};
use crate::world::World;

#[test]
fn what_the_command_leaves_ends_with_it() {
    let Some(world) = World::new(&[]) else { return };
    let [a, b] = [1, 2].map(seconds);
    let script = format!("sleep {a} & (setsid sleep {b} &) ; exit 4");
    let ran = world.run(&["--", "sh", "-c", &script]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert_eq!(sleeping(&[a, b]), [""; 0]);
}

/// `--wait`: the last process is waited for, and has the network until then.
#[test]
fn the_last_process_can_be_waited_for() {
    let Some(world) = World::new(&["ping"]) else {
        return;
    };
    let later = format!(
        "sleep 0.5; ping -c 1 -w 60 {} > /dev/null && echo late",
        crate::world::OUTSIDE
    );
    let script = format!("(setsid sh -c '{later}' &) ; exit 4");
    let ran = world.run(&["--wait", "--", "sh", "-c", &script]);
    assert_eq!((ran.code, ran.out.as_str()), (4, "late\n"), "{ran:?}");
}
