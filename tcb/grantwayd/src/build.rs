//! From a description to running domains.

use crate::console::Console;
use crate::devices::{Devices, Shares};
use crate::launch::{equip, start};
use crate::restart::Restart;
use abi::DomId;
use abi::machine::Machine;
use monitor::Hypervisor;
use std::collections::BTreeMap;
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
