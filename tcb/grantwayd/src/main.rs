//! `grantwayd --socket PATH [--log FILE] [--programs DIR] [--with-reader]`: the monitor.
//!
//! Reads a machine ([`abi::machine::Machine`], JSON) from standard input, builds and starts it,
//! prints one line (`{"ready":true,"up_ms":…}`, or `{"error":"…","cannot_run_here":…}` and exits
//! with 1), and then serves the control socket until it is told to end (`down`, SIGTERM, SIGINT,
//! SIGHUP; with `--with-reader` also when the other end of standard output, a pipe, is closed: the
//! process that holds it takes the machine along, however it dies).
//!
//! The programs `driver` and `guest` lie beside its own, or in DIR. Whatever ends this process,
//! every domain ends with it.

mod args;
mod build;
mod client;
mod console;
mod control;
mod devices;
mod launch;
mod log;
mod restart;
mod serve;
mod signals;

use abi::machine::Machine;
use args::Args;
use log::Log;
use serve::Server;
use std::io::{Read, Write};
use std::process::ExitCode;

/// Bytes that a machine may have as JSON: more than the largest one.
const MACHINE_MAX: u64 = 64 << 20;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The caller may tell a machine that cannot run here from one that is wrong.
            let cannot_run_here = sandbox::probe().is_err();
            print_line(&serde_json::json!({ "error": error, "cannot_run_here": cannot_run_here }));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let began_ns = shmem::time::monotonic_ns();
    let args = Args::parse(std::env::args().skip(1))?;
    shmem::install_fault_handler();
    raise_descriptor_limit();
    let log = Log::open(args.log.as_deref())
        .map_err(|e| format!("the log {}: {e}", args.log.as_deref().unwrap_or_default()))?;
    let signals = signals::pipe().map_err(|e| format!("signals: {e}"))?;
    let machine = read_machine()?;
    let socket = control::Socket::bind(&args.socket)
        .map_err(|e| format!("the control socket {}: {e}", args.socket.display()))?;
    let built = build::build(&machine, &args.programs)?;
    let mut server = Server::new(machine.name, built, socket, signals, log, began_ns);
    if args.with_reader {
        server.end_with_reader();
    }
    let up_ns = server.complete()?;
    print_line(&serde_json::json!({ "ready": true, "up_ms": up_ns as f64 / 1e6 }));
    server.run();
    Ok(())
}

/// A domain costs about a dozen descriptors: the customary soft limit is reached with 64 guests.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Without it a smaller machine still fits; a larger one is told what it ran out of.
    let _ = setrlimit(Resource::Nofile, raised);
}

fn read_machine() -> Result<Machine, String> {
    let mut text = Vec::new();
    std::io::stdin()
        .lock()
        .take(MACHINE_MAX)
        .read_to_end(&mut text)
        .map_err(|e| format!("reading the machine from standard input: {e}"))?;
    serde_json::from_slice(&text).map_err(|e| format!("standard input is no machine: {e}"))
}

/// Prints one line; an error is ignored, for the reader may be gone.
fn print_line(line: &serde_json::Value) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}
