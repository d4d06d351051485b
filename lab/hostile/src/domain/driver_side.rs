//! A driver domain that attacks its guests and the monitor.

use crate::common::{connect, flood, invalid_grants};
use abi::hypercall::CreateGrantOp;
use abi::{ConnId, Handle, PAGE, XenbusState};
use config::domain::{DriverConfig, VifConfig};
use driver::vifs::VifPort;
use driver::vifs::memory::{GuestMemory, VifSettings};
use runtime::ledger::Ledger;
use runtime::platform::{Platform, Wait};
use runtime::start::{StartError, Started, rejected_error};
use shmem::Area;
use std::convert::Infallible;
use std::rc::Rc;

/// Number of rounds for which a guest remains connected before the driver domain requests that the
/// guest close the connection.
const ROUNDS_CONNECTED: u32 = 200;

/// Connects guests like a regular driver domain. Then continuously marks their pages as in use,
/// overwrites all writable memory, makes invalid calls, and prints.
pub(crate) fn attack(started: Started<DriverConfig>) -> Result<Infallible, StartError> {
    let Started {
        domain_memory,
        platform,
        calls,
        waiter,
        config,
    } = started;
    let shared = VifSettings::new(
        Rc::clone(&platform),
        Rc::clone(&calls),
        domain_memory.frames,
        &config,
    );
    let mut ports: Vec<VifPort> = config.vifs.iter().map(|vif| port(vif, &shared)).collect();
    platform
        .ready()
        .map_err(|why| rejected_error("ready", why))?;
    let conns: Vec<ConnId> = config.vifs.iter().map(|vif| ConnId(vif.conn)).collect();
    connect(&*platform, &waiter, &conns, || {
        ports.iter_mut().for_each(VifPort::advance);
    })?;
    let mut round = 0;
    loop {
        waiter.heartbeat();
        ports.iter_mut().for_each(VifPort::advance);
        overwrite(domain_memory.window, round);
        invalid_grants(&calls, |n| CreateGrantOp {
            table: Handle(n.wrapping_add(round) % 64),
            index: n,
            frame: n,
            readonly: false,
            io: false,
        });
        flood();
        if round % ROUNDS_CONNECTED == ROUNDS_CONNECTED - 1 {
            close(&*platform, &config.vifs);
        }
        round += 1;
    }
}

fn port(vif: &VifConfig, shared: &VifSettings) -> VifPort {
    let (platform, ledger) = (Rc::clone(&shared.platform), Rc::new(Ledger::new(false)));
    let memory = GuestMemory::new(vif, shared);
    VifPort::new(vif, platform, ledger, Box::new(memory))
}

/// Overwrites every writable page of the window: rings, buffers and use counts.
fn overwrite(window: Area, round: u32) {
    for page in 0..(window.len() / PAGE) as u32 {
        if let Some(page) = window.page(page) {
            let _missing = page.fill(round as u8 | 1);
        }
    }
}

/// Requests that the guests close their connections, so that they revoke pages that are marked as
/// in use.
fn close(platform: &dyn Platform, vifs: &[VifConfig]) {
    for vif in vifs {
        let record = runtime::platform::NO_RECORD;
        let _refused = platform.set_state(ConnId(vif.conn), XenbusState::Closing, &record);
    }
}
