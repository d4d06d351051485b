//! `cargo xtask …`: what the project does about itself. `cargo demo` is `cargo xtask demo`.

mod book;
mod build;
mod compare;
mod defences;
mod dist;
mod fuzz;
mod hostile;
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
mod words;
mod workspace;
mod xen;

use anyhow::{Result, bail};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <task>

  build              build grantway and the programs that it starts into target/release/
  demo [ARGS…]       build, then run `grantway demo ARGS…` (also: cargo demo)
  test [--require] [ARGS…]  every test, then what was skipped; --require: a skip fails
  layering           check who depends on whom and who may use `unsafe` (xtask/layering.txt)
  sizes              check how long functions, files, lines are; print lines of code per folder
  words              find words that are retired (xtask/words.txt)
  links              find links of pages, and paths in code, that lead nowhere
  book               the pages as a book: target/book/html (mdbook)
  dist [--built] [--check]  the Debian package: target/dist (cargo-deb); --built: of the programs
                     that are built; --check: lintian, installed and purged in a folder of its own
  tcb                count the trusted base: lines and `unsafe` blocks per crate and program; fails
                     where a program has more lines than xtask/layering.txt lets it have
  mutants [MODULE…]  mutate ring, grants, counted-grants, …: do the tests notice? resumable
  mutants --kept [MODULE…]  print what is known so far, without running anything
  xen [TEST…]        the driver domain on the real Xen, in an emulated machine (--help says more)
  xen exp [ARGS…]    there beside the kernel's xen-netback: work a packet; resumable
  compare COMMIT     is the tree as fast as that commit? (--help says more)
  defences [--kept] [NAME…]  take each defence away: does its test fail? resumable
  soak --kills N [--of driver|guest|manager|netd] [--minutes M] [--fresh]
                     kill it (the driver domain) under load; resumable
  soak --attaches N [--minutes M] [--fresh]  attach and detach under load and kills; resumable
  soak --guests N [--minutes M] [--fresh]  mixed traffic of N guests for M minutes (30) under kills,
                     profiles and traces; resumable
  hostile [--minutes N]  what innocent guests notice of a hostile guest, a hostile driver domain
  fuzz-smoke [--guided] [--seconds N] [BODY…]  run every fuzz target for N seconds (5)";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(figures::exit_code(&error))
        }
    }
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
        ("xen", args) => xen::run(args),
        ("layering", []) => layering::check(),
        ("sizes", []) => sizes::check(),
        ("words", []) => words::check(),
        ("links", []) => links::check(),
        ("book", []) => book::build(),
        ("dist", args) => dist::run(args),
        ("tcb", []) => tcb::print(),
        ("mutants", [kept, modules @ ..]) if kept == "--kept" => mutants::print_kept(modules),
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
