//! One domain: its devices are handed to it, its process is started.

use crate::console::Console;
use crate::devices::{Devices, Refusal};
use abi::DomId;
use abi::machine::{Domain, Program};
use monitor::{Hypervisor, Start};
use shmem::Span;
use std::os::fd::AsFd;
use std::path::Path;

/// Gives a domain its devices; `life` is how often it was started before. A refusal that is not
/// busy is for good: the domain may have some of them then.
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
    let started = hypervisor.start(id, &start);
    started.map_err(|error| error.to_string())?;
    Ok(console)
}

/// A user of a domain's own, that differs between domains and (mostly) between instances, far
/// from the ids that people use. Where there are no such users the sandbox does without.
fn user_of(id: DomId) -> u32 {
    0x4000_0000 | (std::process::id() & 0x3fff) << 16 | u32::from(id.0)
}
