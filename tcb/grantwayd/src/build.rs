//! From a description to running domains.

use crate::console::Console;
use crate::devices::{Devices, Refusal, Shares};
use crate::restart::Restart;
use abi::DomId;
use abi::machine::{Domain, Machine, Program};
use monitor::{DomainError, Hypervisor, Start};
use shmem::Span;
use shmem::time::monotonic_ns;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;

/// A machine whose domains were started.
pub(crate) struct Built {
    pub(crate) hypervisor: Hypervisor,
    pub(crate) consoles: Vec<(DomId, Console)>,
    /// Those that are started again when they have ended.
    pub(crate) restarts: Vec<Restart>,
}

/// Builds and starts everything. On an error nothing is left: domains that were started end with
/// the hypervisor.
pub(crate) fn build(machine: &Machine, programs: &Path) -> Result<Built, String> {
    let mut hypervisor = Hypervisor::new().map_err(|e| e.to_string())?;
    let mut ids: BTreeMap<&str, DomId> = BTreeMap::new();
    let mut restarts = Vec::new();
    let mut shares = Shares::new();
    // A device may be over another domain's memory: all memory first.
    for domain in &machine.domains {
        let id = hypervisor
            .create_domain(domain)
            .map_err(|e| e.to_string())?;
        if ids.insert(&domain.name, id).is_some() {
            return Err(format!("there are two domains named {}", domain.name));
        }
    }
    for domain in &machine.domains {
        let Some(&id) = ids.get(domain.name.as_str()) else {
            continue;
        };
        let (devices, lacks) = Devices::open(domain, &mut shares)?;
        for what in lacks {
            hypervisor.lacks(what);
        }
        equip(&mut hypervisor, id, &devices, 0).map_err(|refusal| refusal.why)?;
        if let Some(pause_ms) = domain.restart_pause_ms {
            let files = (devices, programs.to_owned());
            restarts.push(Restart::new(id, domain.clone(), files, pause_ms));
        }
    }
    for connection in &machine.connections {
        let end = |name: &str| {
            ids.get(name)
                .copied()
                .ok_or_else(|| format!("a connection names no domain: {name}"))
        };
        let (backend, frontend) = (end(&connection.backend)?, end(&connection.frontend)?);
        hypervisor
            .connect(backend, frontend, connection.handle)
            .map_err(|e| e.to_string())?;
    }
    let mut built = Built {
        hypervisor,
        consoles: Vec::new(),
        restarts,
    };
    for domain in &machine.domains {
        let Some(&id) = ids.get(domain.name.as_str()) else {
            continue;
        };
        match start(&mut built.hypervisor, id, domain, programs) {
            Ok(console) => built.consoles.push((id, console)),
            Err(error) => {
                built.hypervisor.kill_all("killed: the start failed");
                return Err(error);
            }
        }
    }
    Ok(built)
}

/// Gives a domain its devices; `life` is how often it was started before. What is not busy is for good: the
/// domain may have some of them then.
pub(crate) fn equip(
    hypervisor: &mut Hypervisor,
    id: DomId,
    devices: &Devices,
    life: u64,
) -> Result<(), Refusal> {
    let frames = hypervisor.frames(id).unwrap_or(Span::EMPTY);
    let of = |name: &str| {
        let id = hypervisor.find(name)?;
        Some((id, hypervisor.frames(id)?))
    };
    let devices = devices.hand_out(frames, life, of)?;
    let given = hypervisor.give_devices(id, devices);
    given.map_err(|error| error.to_string().into())
}

/// Starts a domain; its console.
pub(crate) fn start(
    hypervisor: &mut Hypervisor,
    id: DomId,
    domain: &Domain,
    programs: &Path,
) -> Result<Console, String> {
    let (console, theirs) = Console::create(&domain.name)
        .map_err(|e| format!("domain {}: its console: {e}", domain.name))?;
    let program = programs.join(match domain.program {
        Program::Driver => "driver",
        Program::Guest => "guest",
    });
    let start = Start {
        program: &program,
        args: &[],
        console: theirs.as_fd(),
        uid: Some(user_of(id)),
    };
    hypervisor
        .start(id, &start, monotonic_ns())
        .map_err(|error| match &error {
            DomainError::Spawn { .. } => match sandbox::probe() {
                Ok(_) => error.to_string(),
                Err(why) => format!("{error} ({why})"),
            },
            _ => error.to_string(),
        })?;
    Ok(console)
}

/// A user of a domain's own, that differs between domains and (mostly) between instances, far
/// from the ids that people use. Where there are no such users the sandbox does without.
fn user_of(id: DomId) -> u32 {
    0x4000_0000 | (std::process::id() & 0x3fff) << 16 | u32::from(id.0)
}
