//! `grantwayd --socket PATH [--log FILE] [--metrics PATH] [--metrics-port PORT] [--programs DIR]
//! [--with-reader] [--state FILE]`: the core.
//!
//! It owns every page frame and knows nothing of what passes through them: no Ethernet, no JSON, no
//! configuration. Two helpers, which it starts and starts again, know the rest:
//!
//! | program | what it does | what it is trusted with |
//! |---|---|---|
//! | `grantwayd` | frames, domains, grants, events, connections, hypercalls | everybody's memory |
//! | `grantway-netd` | opens and configures devices | the host's network |
//! | `grantway-manager` | control socket, starts, consoles, log | which domains there are |
//!
//! The machine's description, on standard input, is the manager's to read, as are all arguments but
//! the last two; it opens what they name, and prints the first line (`{"ready":true,"up_ms":…}`, or
//! `{"error":"…","cannot_run_here":…}`; where there is no manager yet the core prints
//! `{"error":"…"}`). The machine is served until it is told to end (`down`, SIGTERM, SIGINT,
//! SIGHUP; with `--with-reader` also when the other end of standard output, a pipe, is closed: the
//! process that holds it takes the machine along, however it dies). Whatever ends this process,
//! everything ends with it.
//!
//! The helpers lie beside this program; the domains' programs, `driver` and `guest`, beside it or
//! in DIR.

mod args;
mod child;
mod control;
mod netd;
mod server;
mod signals;
mod state;

use abi::core::MACHINE_MAX;
use args::Args;
use monitor::Hypervisor;
use monitor::grant::mechanism::Make;
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};
use server::Core;
use shmem::time::monotonic_ns;
use std::io::{self, Read, Write};
use std::process::ExitCode;

/// The whole program, with these mechanisms beside counted grants, if any.
#[must_use]
pub fn run(mechanism: Option<Make>) -> ExitCode {
    let Err(error) = serve(mechanism) else {
        return ExitCode::SUCCESS;
    };
    error.iter().for_each(|error| print_error(error));
    ExitCode::FAILURE
}

/// Serves until the end. An error that was not said yet is returned.
fn serve(mechanism: Option<Make>) -> Result<(), Option<String>> {
    let began_ns = monotonic_ns();
    let args = Args::parse(std::env::args().skip(1))?;
    shmem::install_fault_handler();
    // A helper that is taken over must not read our memory. Without root's rights we could not open
    // our own files in /proc then.
    if geteuid().is_root() {
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| e.to_string())?;
    }
    let signals = signals::pipe().map_err(|e| format!("signals: {e}"))?;
    let hypervisor = Hypervisor::new(mechanism).map_err(|e| e.to_string())?;
    let mut core = Core::new(hypervisor, args, signals, began_ns)?;
    core.start(read_machine)?;
    core.run()
}

fn read_machine() -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut stdin = io::stdin().lock().take(MACHINE_MAX as u64);
    stdin.read_to_end(&mut text)?;
    Ok(text)
}

/// The first line, if there is no manager that could print it: an error is ignored, for the reader
/// may be gone.
fn print_error(error: &str) {
    let line = format!("{{\"error\":\"{}\"}}\n", escaped(error));
    // It is a line, so nothing of it is kept back.
    let _ = io::stdout().lock().write_all(line.as_bytes());
}

/// Words as they stand between quotes.
fn escaped(words: &str) -> String {
    let words = words.replace('\\', "\\\\").replace('"', "\\\"");
    words.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_between_quotes() {
        assert_eq!(escaped("a \"b\"\\\n"), "a \\\"b\\\"\\\\ ");
    }
}
