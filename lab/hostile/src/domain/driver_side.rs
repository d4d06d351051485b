//! A driver domain that does to its guests and to the monitor what it can.

use crate::common::{connect, flood, nonsense};
use abi::hypercall::Create;
use abi::{ConnId, Handle, PAGE, XenbusState};
use config::domain::{DriverConfig, VifConfig};
use driver::vifs::VifPort;
use driver::vifs::memory::{GuestMemory, Shared};
use runtime::ledger::Ledger;
use runtime::platform::{Platform, Waiting};
use runtime::start::{StartError, Started, refused};
use shmem::{Area, Span};
use std::convert::Infallible;
use std::rc::Rc;

/// Rounds for which a guest is kept connected before it is told to close.
const KEPT: u32 = 200;

/// Connects guests as a driver domain does. Then marks their pages as in use, overwrites all that
/// it may write, calls and prints without a pause.
pub(crate) fn attack(started: Started<DriverConfig>) -> Result<Infallible, StartError> {
    let Started {
        home,
        platform,
        calls,
        waiter,
        config,
    } = started;
    let shared = Shared::new(
        Rc::clone(&platform),
        Rc::clone(&calls),
        home.frames,
        &config,
    );
    let mut ports: Vec<VifPort> = config.vifs.iter().map(|vif| port(vif, &shared)).collect();
    platform.ready().map_err(|why| refused("ready", why))?;
    let conns: Vec<ConnId> = config.vifs.iter().map(|vif| ConnId(vif.conn)).collect();
    connect(&*platform, &waiter, &conns, || {
        ports.iter_mut().for_each(VifPort::advance);
    })?;
    let mut round = 0;
    loop {
        waiter.heartbeat();
        ports.iter_mut().for_each(VifPort::advance);
        overwrite(home.window, round);
        nonsense(&calls, |n| Create {
            table: Handle(n.wrapping_add(round) % 64),
            index: n,
            frame: n,
            readonly: false,
        });
        flood();
        if round % KEPT == KEPT - 1 {
            close(&*platform, &config.vifs);
        }
        round += 1;
    }
}

fn port(vif: &VifConfig, shared: &Shared) -> VifPort {
    let (platform, ledger) = (Rc::clone(&shared.platform), Rc::new(Ledger::new(false)));
    let memory = GuestMemory::new(vif, shared, Span::EMPTY);
    VifPort::new(vif, platform, ledger, Box::new(memory))
}

/// Every page of the window that may be written: rings, buffers, the counts of uses.
fn overwrite(window: Area, round: u32) {
    for page in 0..(window.len() / PAGE) as u32 {
        if let Some(page) = window.page(page) {
            let _missing = page.fill(round as u8 | 1);
        }
    }
}

/// Tells the guests to close, so that they revoke what is marked as in use.
fn close(platform: &dyn Platform, vifs: &[VifConfig]) {
    for vif in vifs {
        let record = runtime::platform::NO_RECORD;
        let _refused = platform.set_state(ConnId(vif.conn), XenbusState::Closing, &record);
    }
}
