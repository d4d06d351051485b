//! `grantway-manager`: builds and runs a machine, by asking the core, which starts it.
//!
//! Its standard input is the link to the core, its standard output the place of the first line
//! (`{"ready":true,"up_ms":…}`, or `{"error":"…","cannot_run_here":…}`). It reads the machine's
//! description and what clients and domains say, and has no page of any domain, no right on this
//! system, and no file but the log: what it wants done the core does, or refuses. Before the first
//! one gives up its rights it opens what its arguments name.
//!
//! When it ends, the core starts another, which goes on: with what this one has had kept
//! (`keep`), with the clients that wait at the socket, and with every console.
//!
//! | module | what it is |
//! |---|---|
//! | `core` | the link to the core |
//! | `args`, `opened` | what the command line names: sockets of clients, and the log |
//! | `world` | the machine, and where its domains stand |
//! | `shape` | what the machine has become: guests that came and went |
//! | `state` | what the next core's manager is to know of it |
//! | `windows` | which slots of the driver domain's windows are whose |
//! | `reload` | what it takes to make the machine what files say |
//! | `build` | from a description to running domains |
//! | `restart` | when a domain is started again |
//! | `console`, `consoles`, `log` | what domains print |
//! | `mailbox` | what domains are asked, and what they reply |
//! | `keep` | what the next manager has to know |
//! | `serve`, `client`, `access` | the main loop; the control socket, and who may ask for what |
//! | `metrics` | what all of it counts, for who watches many machines |

mod access;
mod args;
mod build;
mod client;
mod console;
mod consoles;
mod core;
mod keep;
mod log;
mod mailbox;
mod metrics;
mod opened;
mod refusal;
mod reload;
mod restart;
mod serve;
mod shape;
mod state;
mod windows;
mod world;

use crate::core::Core;
use abi::core::{Ask, MACHINE_MAX, Tell};
use abi::machine::Machine;
use args::Args;
use confine::roles::MANAGER;
use confine::{Rights, confine};
use keep::Keep;
use link::sealed;
use log::Log;
use opened::Opened;
use serve::Server;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use world::World;

fn main() -> ExitCode {
    let link = io::stdin().as_fd().try_clone_to_owned();
    let Ok(link) = link else {
        return ExitCode::FAILURE;
    };
    let mut core = Core::new(link.into());
    // Before the rights to look are given up.
    let lacks = confine::probe().err();
    match run(&mut core) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The caller may tell a machine that cannot run here from one that is wrong.
            let cannot_run_here = lacks.is_some();
            let error = match lacks {
                Some(lacks) => format!("{error} ({lacks})"),
                None => error,
            };
            if !core.is_gone() {
                print(&serde_json::json!({ "error": error, "cannot_run_here": cannot_run_here }));
            }
            let _ = core.ask(Ask::End { failed: true }, &[]);
            ExitCode::FAILURE
        }
    }
}

/// What the core has given us at the start.
struct Given {
    core_pid: u32,
    began_ns: u64,
    user: u32,
    own_user: u32,
    machine: OwnedFd,
    kept: Option<OwnedFd>,
    held: Vec<OwnedFd>,
}

fn welcome(core: &mut Core) -> Option<Given> {
    let (tell, fds) = core.first()?;
    let Tell::Welcome {
        pid,
        began_ns,
        user,
        has_kept,
        own_user,
    } = tell
    else {
        return None;
    };
    let mut fds = fds.into_iter();
    let machine = fds.next()?;
    let kept = match has_kept {
        true => Some(fds.next()?),
        false => None,
    };
    Some(Given {
        core_pid: pid,
        began_ns,
        user,
        own_user,
        machine,
        kept,
        held: fds.collect(),
    })
}

fn run(core: &mut Core) -> Result<(), String> {
    let given = welcome(core).ok_or("the core has said nothing")?;
    let args = Args::parse(std::env::args().skip(1))?;
    let opened = match given.held.is_empty() {
        true => {
            let opened = Opened::new(&args)?;
            let held = core.ask(Ask::Hold {}, &opened.fds());
            held.map_err(|refusal| {
                // A core that ends before it has heard of them leaves them.
                opened::remove(&args);
                refusal.why
            })?;
            opened
        }
        false => Opened::held(&args, given.held).ok_or("the core holds no socket")?,
    };
    let of_metrics = |error: io::Error| format!("metrics: {error}");
    // Before the right to make sockets is given up.
    let metrics = metrics::prepare(opened.metrics, given.user).map_err(of_metrics)?;
    let is_root = rustix::process::geteuid().is_root();
    let user = is_root.then_some(given.own_user);
    let rights = Rights { user, ..MANAGER };
    let mut missing = confine(&rights).map_err(|e| format!("the manager's own rights: {e}"))?;
    // Takes 20 ms, which the first domain would have to wait for. Without a thread it does.
    let _ = std::thread::Builder::new().spawn(shmem::time::tsc_hz);
    if !is_root {
        missing.push("an own user for the manager".into());
    }
    let log = Log::start(opened.log).map_err(|e| format!("the log: {e}"))?;
    let text = sealed::read(&given.machine, MACHINE_MAX).map_err(|e| e.to_string())?;
    let machine: Machine =
        serde_json::from_slice(&text).map_err(|e| format!("standard input is no machine: {e}"))?;
    check(&machine)?;
    let mut world = World::new(machine);
    world.missing.extend(missing);
    let who = (given.core_pid, given.user, given.began_ns);
    let mut server = Server::new(core, world, opened.control, log, who)?;
    if let Some((metrics, asks)) = metrics {
        server.serve_always(asks);
        metrics.start().map_err(of_metrics)?;
    }
    match given.kept {
        // What another manager has written: believed as far as it goes.
        Some(kept) => server.go_on(Keep::read(&kept)),
        None => {
            let up_ns = server.begin()?;
            print(&serde_json::json!({ "ready": true, "up_ms": up_ns as f64 / 1e6 }));
        }
    }
    server.run();
    Ok(())
}

/// What the rest relies on.
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
    Ok(())
}

/// Prints one line; an error is ignored, for the reader may be gone.
fn print(line: &serde_json::Value) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}
