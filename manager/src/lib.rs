//! The program `grantway-manager`: builds and runs a machine by requests to the core.
//!
//! Standard input is the link to the core. The manager prints one line to standard output
//! (`{"ready":true,"up_ms":…}` or `{"error":"…","cannot_run_here":…}`). It parses the machine's
//! description and the bytes of clients and domains. It has no page of any domain, no capability,
//! and no file except the log: the core carries out its requests or refuses them. The first manager
//! opens the files and sockets of its arguments before it drops its rights.
//!
//! If the manager exits, the core starts another manager, which resumes from the `journal` and
//! serves the waiting clients and every console.
//!
//! | module | contents |
//! |---|---|
//! | `core` | the link to the core |
//! | `args`, `listeners` | the command line; the sockets and the log that it names |
//! | `machine_state` | the machine's specification, and the state of its domains |
//! | `spec` | the specification: domains, guests, NICs |
//! | `state_file` | the state file, for the manager of the next core |
//! | `edit` | edits of the specification |
//! | `reload` | the steps from the current machine to edited files |
//! | `build` | requests to the core and netd for one domain |
//! | `life` | one domain: its goal, its state, and the next request for it |
//! | `deadlines` | the queue of the main loop's deadlines |
//! | `console`, `consoles`, `log` | domains' output |
//! | `mailbox` | requests to domains, and their replies |
//! | `journal` | the file that the next manager resumes from |
//! | `serve`, `client`, `access` | the main loop; the control socket and its rights |
//! | `metrics` | counters of the machine and its domains, by HTTP |

mod access;
mod args;
mod build;
mod client;
mod console;
mod consoles;
mod core;
mod core_error;
mod deadlines;
mod edit;
mod journal;
mod life;
mod listeners;
mod log;
mod machine_state;
mod mailbox;
mod metrics;
mod reload;
mod serve;
mod spec;
mod state_file;

#[cfg(feature = "testing")]
pub use metrics::hostile as testing;

use crate::core::CoreLink;
use abi::core::{CoreMessage, CoreRequest, MACHINE_MAX};
use abi::machine::Machine;
use args::Args;
use confine::roles::MANAGER;
use confine::{Rights, confine};
use journal::SavedState;
use link::sealed;
use listeners::Listeners;
use log::LogSender;
use machine_state::MachineState;
use serve::ManagerServer;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

/// Runs the manager until its machine is shut down. Standard input is the link to the core.
#[must_use]
pub fn main() -> ExitCode {
    let link = io::stdin().as_fd().try_clone_to_owned();
    let Ok(link) = link else {
        return ExitCode::FAILURE;
    };
    let mut core = CoreLink::new(link.into());
    // Runs before the manager drops the rights that the probe needs.
    let lacks = confine::probe().err();
    match run(&mut core) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The caller distinguishes an unsuitable system from an invalid machine.
            let cannot_run_here = lacks.is_some();
            let error = match lacks {
                Some(lacks) => format!("{error} ({lacks})"),
                None => error,
            };
            if !core.is_closed() {
                print(&serde_json::json!({ "error": error, "cannot_run_here": cannot_run_here }));
            }
            let _ = core.request(CoreRequest::End { failed: true }, &[]);
            ExitCode::FAILURE
        }
    }
}

fn run(core: &mut CoreLink) -> Result<(), String> {
    let no_welcome = || "the core has sent no welcome message".to_owned();
    let (first, fds) = core.next_report().ok_or_else(no_welcome)?;
    let CoreMessage::Init {
        pid,
        began_ns,
        user,
        has_kept,
        own_user,
    } = first
    else {
        return Err(no_welcome());
    };
    let mut fds = fds.into_iter();
    let machine = fds.next().ok_or_else(no_welcome)?;
    let kept = has_kept.then(|| fds.next().ok_or_else(no_welcome));
    let kept = kept.transpose()?;
    let held: Vec<OwnedFd> = fds.collect();
    let args = Args::parse(std::env::args().skip(1))?;
    let opened = match held.is_empty() {
        true => {
            let opened = Listeners::new(&args)?;
            let held = core.request(CoreRequest::KeepDescriptors {}, &opened.fds());
            held.map_err(|refusal| {
                // The core removes only sockets that it holds.
                listeners::remove(&args);
                refusal.why
            })?;
            opened
        }
        false => Listeners::from_fds(&args, held).ok_or("the core holds no socket")?,
    };
    let of_metrics = |error: io::Error| format!("metrics: {error}");
    // Runs before the manager drops the right to create sockets.
    let metrics = metrics::prepare(opened.metrics, user).map_err(of_metrics)?;
    let is_root = rustix::process::geteuid().is_root();
    let rights = Rights {
        user: is_root.then_some(own_user),
        ..MANAGER
    };
    let mut missing = confine(&rights).map_err(|e| format!("the manager's own rights: {e}"))?;
    // Measuring the clock takes 20 ms; without the thread, the first domain would wait for it.
    let _ = std::thread::Builder::new().spawn(shmem::time::tsc_hz);
    if !is_root {
        missing.push("a separate user for the manager".into());
    }
    let log = LogSender::start(opened.log).map_err(|e| format!("the log: {e}"))?;
    let text = sealed::read(&machine, MACHINE_MAX).map_err(|e| e.to_string())?;
    let machine: Machine = serde_json::from_slice(&text)
        .map_err(|e| format!("the machine's description is invalid: {e}"))?;
    check(&machine)?;
    let mut state = MachineState::new(machine);
    state.add_missing(missing);
    let origin = (pid, user, began_ns);
    let mut server = ManagerServer::new(core, state, opened.control, log, origin)?;
    if let Some((metrics, requests)) = metrics {
        server.serve_internal(requests);
        metrics.start().map_err(of_metrics)?;
    }
    match kept {
        // Another manager wrote the journal, so it is parsed up to the first invalid line.
        Some(kept) => server.resume_state(SavedState::read(&kept)),
        None => {
            let up_ns = server.begin()?;
            print(&serde_json::json!({ "ready": true, "up_ms": up_ns as f64 / 1e6 }));
        }
    }
    server.run();
    Ok(())
}

/// Checks the invariants on which the other modules rely.
fn check(machine: &Machine) -> Result<(), String> {
    let mut names = std::collections::BTreeSet::new();
    for domain in &machine.domains {
        if !names.insert(&domain.name) {
            return Err(format!("there are two domains named {}", domain.name));
        }
        if domain.name.len() > abi::core::TEXT_MAX {
            return Err(format!("the name of domain {} is too long", domain.name));
        }
    }
    for connection in &machine.connections {
        let mut ends = [&connection.backend, &connection.frontend].into_iter();
        if let Some(name) = ends.find(|name| !names.contains(name)) {
            return Err(format!("a connection names no domain: {name}"));
        }
    }
    Ok(())
}

/// Prints one line. Ignores errors, because the reader may have closed the pipe.
fn print(line: &serde_json::Value) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}
