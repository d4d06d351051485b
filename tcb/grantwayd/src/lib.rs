//! `grantwayd --socket PATH [--log FILE] [--metrics PATH] [--metrics-port PORT] [--programs DIR]
//! [--with-reader] [--state FILE]`: the core.
//!
//! The core owns every page frame, but does not interpret their contents: it has no code for
//! Ethernet, JSON or configuration. Two helpers, which it starts and restarts, do the rest:
//!
//! | program | task | trusted with |
//! |---|---|---|
//! | `grantwayd` | frames, domains, grants, events, connections, hypercalls | every page frame |
//! | `grantway-netd` | opens and configures devices | the host's network |
//! | `grantway-manager` | control socket, starts, consoles, log | the set of domains |
//!
//! The core passes the machine's description on standard input to the manager, and all arguments
//! except the last two. The manager opens the files that they name, and prints the first line
//! (`{"ready":true,"up_ms":…}`, or `{"error":"…","cannot_run_here":…}`); before there is a manager,
//! the core prints `{"error":"…"}`. The machine runs until `down`, SIGTERM, SIGINT or SIGHUP. With
//! `--with-reader` it also ends when the other end of standard output, a pipe, is closed: so the
//! machine ends with the process that holds that end, however that dies. However the core ends, the
//! whole machine ends with it.
//!
//! The helpers are in the folder of this program; the domains' programs, `driver` and `guest`, in
//! the same folder or in DIR.

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
use monitor::grant::mechanism::MechanismFactory;
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};
use server::Core;
use shmem::time::monotonic_ns;
use std::io::{self, Read, Write};
use std::process::ExitCode;

/// Runs the program, with the given mechanisms besides counted grants, if any. `driver` is the name
/// of the driver domain's program.
#[must_use]
pub fn run(driver: &'static str, mechanism: Option<MechanismFactory>) -> ExitCode {
    let Err(error) = serve(driver, mechanism) else {
        return ExitCode::SUCCESS;
    };
    error.iter().for_each(|error| print_error(error));
    ExitCode::FAILURE
}

/// Serves until the machine ends. Returns an error that was not reported yet.
fn serve(driver: &'static str, mechanism: Option<MechanismFactory>) -> Result<(), Option<String>> {
    let began_ns = monotonic_ns();
    let args = Args::parse(driver, std::env::args().skip(1))?;
    shmem::install_fault_handler();
    // A compromised helper must not read our memory. Only as root: without it the core could not
    // open its own files in /proc afterwards.
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

/// Prints the first line if there was no manager to print it. Ignores errors, since the reader may
/// have closed the pipe.
fn print_error(error: &str) {
    let line = format!("{{\"error\":\"{}\"}}\n", escaped(error));
    // Standard output is line-buffered, so the whole line is written.
    let _ = io::stdout().lock().write_all(line.as_bytes());
}

/// Escapes a text for a JSON string.
fn escaped(words: &str) -> String {
    let words = words.replace('\\', "\\\\").replace('"', "\\\"");
    words.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_for_json() {
        assert_eq!(escaped("a \"b\"\\\n"), "a \\\"b\\\"\\\\ ");
    }
}
