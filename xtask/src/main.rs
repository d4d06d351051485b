//! `cargo xtask …`: tasks of the project. `cargo demo` is `cargo xtask demo`.

mod book;
mod build;
mod compare;
mod defences;
mod dist;
mod fuzz;
mod help;
mod hostile;
mod kubernetes;
mod layering;
mod links;
mod modules;
mod mutants;
mod rules;
mod run_tests;
mod sizes;
mod soak;
mod source;
mod syntax;
mod tcb;
mod vfio;
mod words;
mod workspace;
mod xen;

use anyhow::{Result, bail};
use std::process::ExitCode;

fn main() -> ExitCode {
    end_with_reader();
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(figures::exit_code(&error))
        }
    }
}

/// Exit status of a process whose output no longer has a reader: 128 + SIGPIPE, as a shell reports
/// it.
const BROKEN_PIPE: i32 = 128 + 13;

/// Makes the process exit without a message when the reader of its output exits, as in `cargo xtask
/// tcb | head`. The exit status reports a failure, because the task is not complete.
fn end_with_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload_as_str().unwrap_or_default();
        if message.starts_with("failed printing to stdout: Broken pipe") {
            std::process::exit(BROKEN_PIPE);
        }
        usual(panic);
    }));
}

fn run(args: &[String]) -> Result<()> {
    let Some((task, rest)) = args.split_first() else {
        bail!("which task?\n\n{}", help::usage())
    };
    if let Some(text) = help::requested(task, rest) {
        println!("{text}");
        return Ok(());
    }
    match (task.as_str(), rest) {
        ("build", []) => build::build().map(drop),
        ("demo", args) => build::demo(args),
        ("compare", args) => compare::run(args),
        ("test", args) => run_tests::run(args),
        ("vfio", args) => vfio::run(args),
        ("xen", args) => xen::run(args),
        ("kubernetes", args) => kubernetes::run(args),
        ("layering", []) => layering::check(),
        ("sizes", []) => sizes::check(),
        ("words", folders) => words::check(folders),
        ("links", []) => links::check(),
        ("book", []) => book::build(),
        ("dist", args) => dist::run(args),
        ("tcb", []) => tcb::print(),
        ("mutants", [kept, modules @ ..]) if kept == "--kept" => mutants::print_stored(modules),
        ("mutants", modules) => mutants::run(modules),
        ("defences", args) => defences::run(args),
        ("soak", args) => soak::run(args),
        ("hostile", args) => hostile::run(args),
        ("fuzz-smoke", args) => fuzz::smoke(args),
        ("help" | "--help" | "-h", _) => {
            println!("{}", help::usage());
            Ok(())
        }
        _ => bail!("no such task: {}\n\n{}", args.join(" "), help::usage()),
    }
}
