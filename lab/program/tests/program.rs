//! The program's arguments.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_grantway-lab"));
    program.args(args).output().unwrap()
}

#[test]
fn plans_are_listed() {
    let output = run(&["exp", "--list"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for plan in ["base", "peers", "vm"] {
        assert!(text.lines().any(|line| line.trim() == plan), "{text}");
    }
}

#[test]
fn an_unknown_command_is_wrong_usage() {
    assert_eq!(run(&["nonsense"]).status.code(), Some(2));
}
