//! `cargo xtask …`: tasks of the project. `cargo demo` is `cargo xtask demo`.

mod book;
mod build;
mod compare;
mod defences;
mod dist;
mod fuzz;
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

const USAGE: &str = "\
usage: cargo xtask <task>

  build              build grantway and the programs that it starts into target/release/
  demo [ARGS…]       build, then run `grantway demo ARGS…` (also: cargo demo)
  test [--require] [ARGS…]  run every test, then list the skipped ones; --require: a skip fails
  layering           check dependencies between crates, and uses of `unsafe` (xtask/layering.txt)
  sizes              check the length of functions, files and lines; print lines of code per folder
  words [FOLDER…]    find retired words and phrases (xtask/words.txt)
  links              find broken links in pages, and broken paths in code
  book               build the pages as a book: target/book/html (mdbook)
  dist [--built] [--check]  build the Debian packages: target/dist (cargo-deb); --built: without
                     building programs; --check: also lintian, install, upgrade and purge in a
                     separate root
  tcb                count lines and `unsafe` blocks of the trusted base; fails if a program exceeds
                     its limit in xtask/layering.txt
  mutants [MODULE…]  do the tests detect changes of ring, grants, counted-grants, …? resumable
  mutants --kept [MODULE…]  print stored results without running anything
  vfio               test a NIC that is a PCI device behind an emulated IOMMU (see --help)
  xen [TEST…]        test the driver domain on the real Xen, in an emulated machine (see --help)
  xen exp [ARGS…]    compare it there with the kernel's xen-netback: work per packet; resumable
  kubernetes [GROUP…]  Grantway in a real cluster of two nodes, on this system (see --help)
  compare COMMIT     is the tree as fast as that commit? (see --help)
  defences [--kept] [NAME…]  remove each defence: does its test fail? resumable
  soak --kills N [--of driver|guest|manager|netd] [--minutes M] [--fresh]
                     kill the driver domain, or another part, under load; resumable
  soak --attaches N [--minutes M] [--fresh]  attach and detach under load and kills; resumable
  soak --guests N [--minutes M] [--fresh]  mixed traffic of N guests for M minutes (30) under kills,
                     profiles and traces; resumable
  hostile [--minutes N]  measure how hostile domains and a SYN flood disturb innocent guests
  fuzz-smoke [--guided] [--seconds N] [BODY…]  run every fuzz target for N seconds (5)";

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
        bail!("which task?\n\n{USAGE}")
    };
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
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("no such task: {}\n\n{USAGE}", args.join(" ")),
    }
}
