//! `grantwayd --socket PATH [--log FILE] [--metrics PATH] [--metrics-port PORT] [--programs DIR]
//! [--with-reader] [--state FILE]`: the core.
//!
//! The core owns all page frames, but does not interpret their contents: it has no code for
//! Ethernet, JSON or configuration. Two helpers, which it starts and restarts, have these tasks:
//!
//! | program | task | trusted with |
//! |---|---|---|
//! | `grantwayd` | frames, domains, grants, events, connections, hypercalls | every page frame |
//! | `grantway-netd` | opens and configures devices | the host's network |
//! | `grantway-manager` | control socket, starts, consoles, log | the set of domains |
//!
//! The core passes the machine's description from standard input to the manager, with the arguments
//! that it does not use itself. The manager opens the files in the arguments, and prints the first
//! line (`{"ready":true,"up_ms":…}`, or `{"error":"…","cannot_run_here":…}`). If the manager cannot
//! be started, the core prints `{"error":"…"}`. The machine runs until `down`, SIGTERM, SIGINT or
//! SIGHUP. With `--with-reader`, the machine also shuts down when the other end of standard output,
//! a pipe, is closed, and so does not outlive the process that holds that end. When the core exits
//! for any reason, the whole machine is removed.
//!
//! The helpers are in the folder of this program. The domains' programs, `driver` and `guest`, are
//! in the same folder or in DIR.

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

/// Runs the program. `mechanism` provides further grant mechanisms in addition to counted grants.
/// `driver` is the name of the driver domain's program.
#[must_use]
pub fn run(driver: &'static str, mechanism: Option<MechanismFactory>) -> ExitCode {
    let Err(error) = serve(driver, mechanism) else {
        return ExitCode::SUCCESS;
    };
    error.iter().for_each(|error| print_error(error));
    ExitCode::FAILURE
}

/// Serves until the machine is shut down. Returns an error that was not reported yet.
fn serve(driver: &'static str, mechanism: Option<MechanismFactory>) -> Result<(), Option<String>> {
    let began_ns = monotonic_ns();
    let args = Args::parse(driver, std::env::args().skip(1))?;
    shmem::install_fault_handler();
    // A compromised helper must not read the core's memory, so a core that runs as root is not
    // dumpable. A core of another user remains dumpable, because it could not open its own files in
    // /proc otherwise.
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

/// Prints the first line if no manager could print it. Ignores errors, because the reader may have
/// closed the pipe.
fn print_error(error: &str) {
    let line = format!("{{\"error\":\"{}\"}}\n", escaped(error));
    // Standard output is line-buffered, so the whole line is written.
    let _ = io::stdout().lock().write_all(line.as_bytes());
}

/// Escapes a text for a JSON string.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_for_json() {
        assert_eq!(escaped("a \"b\"\\\n"), "a \\\"b\\\"\\\\ ");
    }
}
