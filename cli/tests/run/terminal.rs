//! `grantway run` on a terminal, which the program `script` creates.

use crate::signals::{sleeping, unique_sleep};
use crate::testbed::{Testbed, grantway};
use std::process::Stdio;
use testing::{Running, wait_until};

/// Starts a shell on a terminal.
fn shell(world: &Testbed) -> Running {
    let shell = "bash --norc --noprofile -i";
    let mut command = world.command("script", &["-qec", shell, "/dev/null"]);
    let mut shell = world.spawn(command.env("PS1", "$ ").stdin(Stdio::piped()));
    shell.write("stty -echo rows 33 cols 77; PS1=; echo ready-$((1+1))\n");
    shell.line_with("ready-2");
    shell
}

#[test]
fn keys_work_as_in_a_shell() {
    let Some(world) = Testbed::new(&["script", "bash", "stty"]) else {
        return;
    };
    let mut shell = shell(&world);
    let run = format!("{} run --", grantway());
    // The command sees the size of the window.
    shell.write(&format!("{run} stty size\n"));
    shell.line_with("33 77");
    // Ctrl-C ends the first command, and the second command handles it. The first one needs `exec`,
    // because a shell's child loses a signal that arrives before its exec.
    shell.write(&format!(
        "{run} sh -c 'echo run\"\"s; exec sleep 1000'; echo status-$?\n"
    ));
    shell.line_with("runs");
    shell.write("\x03");
    shell.line_with("status-130");
    let caught = "trap \"echo caught; exit 5\" INT; echo run\"\"s; while :; do sleep 0.05; done";
    shell.write(&format!("{run} sh -c '{caught}'; echo status-$?\n"));
    shell.line_with("runs");
    shell.write("\x03");
    shell.line_with("caught");
    shell.line_with("status-5");
    // Ctrl-Z stops the command, `fg` continues it.
    let mark = unique_sleep(32);
    let script = format!("echo run\"\"s; : {mark}; read line; echo got-$line");
    shell.write(&format!("{run} sh -c '{script}'; echo stopped-$?\n"));
    shell.line_with("runs");
    shell.write("\x1a");
    shell.line_with("stopped-148");
    // The test waits for the stop, because a reading process that has not run since the signal
    // would still read the keys.
    wait_until("the command has not stopped", || is_stopped(&mark));
    shell.write("jobs; fg; echo status-$?\n");
    shell.line_with("Stopped");
    shell.write("that\n");
    shell.line_with("got-that");
    shell.line_with("status-0");
    shell.write("exit\n");
    assert_eq!(shell.finish().code, 0);
    world.wait_until_clean();
}

/// Returns whether the shell with this mark in its script has stopped.
fn is_stopped(mark: &str) -> bool {
    let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.any(|entry| {
        let read = |file| std::fs::read(entry.path().join(file)).unwrap_or_default();
        let [words, stat] = ["cmdline", "stat"].map(|file| {
            let bytes = read(file);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        words.starts_with("sh\0") && words.contains(mark) && stat.contains(") T ")
    })
}

/// A shell that runs as the command controls its jobs.
#[test]
fn a_shell_can_be_the_command() {
    let Some(world) = Testbed::new(&["script", "bash"]) else {
        return;
    };
    let mut shell = shell(&world);
    shell.write(&format!(
        "{} run -- bash --norc --noprofile -i; echo status-$?\n",
        grantway()
    ));
    shell.write("PS1=; echo insi\"\"de $(ls /sys/class/net | tr '\\n' ' ')\n");
    assert!(shell.line_with("inside").contains("eth0 "));
    let asleep = [unique_sleep(31)];
    shell.write(&format!("sleep {}\n", asleep[0]));
    wait_until("sleep has not begun", || !sleeping(&asleep).is_empty());
    shell.write("\x1a");
    shell.line_with("Stopped");
    // A shell that has not yet detected the end of a job does not exit at the first attempt.
    shell.write("kill -9 %1; exit 6 || exit 6\n");
    shell.line_with("status-6");
    shell.write("exit\n");
    assert_eq!(shell.finish().code, 0);
    world.wait_until_clean();
}
