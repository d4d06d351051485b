//! A guest that attacks its driver domain and the monitor.

use crate::common::{connect, flood, invalid_grants};
use abi::counted::Revocation;
use abi::hypercall::{CreateGrantOp, RevokeOp};
use abi::{ConnId, Handle, XenbusState};
use config::domain::GuestConfig;
use guest::interface::Interface;
use guest::interface::build::interfaces;
use runtime::call::Calls;
use runtime::platform::{ConnectRecord, Platform, Wait};
use runtime::start::{StartError, Started, rejected_error};
use shmem::Area;
use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

/// Number of times that doorbells are rung per round.
const RINGS: usize = 1000;
/// Number of frames granted and revoked per round.
const GRANTS: u32 = 32;
const ENTRIES: u32 = 256;

/// Connects like a regular guest. Then repeatedly rings doorbells, makes invalid calls, prints,
/// writes records, grants pages, and fills its rings with arbitrary bytes.
pub(crate) fn attack(started: Started<GuestConfig>) -> Result<Infallible, StartError> {
    let Started {
        domain_memory,
        platform,
        calls,
        waiter,
        config,
    } = started;
    let mut interfaces = interfaces(&domain_memory, &platform, &calls, &config)?;
    platform
        .ready()
        .map_err(|why| rejected_error("ready", why))?;
    let conn = ConnId(0);
    connect(&*platform, &waiter, &[conn], || {
        interfaces.iter_mut().for_each(Interface::advance);
    })?;
    interfaces.iter_mut().for_each(Interface::advance);
    let bell = platform.doorbell(conn).ok();
    let table = calls.borrow_mut().create_table(conn, ENTRIES).ok();
    let mut round = 0;
    loop {
        waiter.heartbeat();
        if let Some(bell) = &bell {
            (0..RINGS).for_each(|_| bell.ring());
        }
        invalid_grants(&calls, |n| CreateGrantOp {
            table: Handle(n.wrapping_add(round)),
            index: n.wrapping_mul(0x9e37_79b9),
            frame: n << (round % 24),
            readonly: n.is_multiple_of(2),
            io: n.is_multiple_of(3),
        });
        if let Some(table) = table {
            grant_and_revoke(&calls, table);
        }
        overwrite(domain_memory.frames, round);
        match round % 4 {
            0 => set_connection_state(&*platform, conn, round),
            _ => interfaces.iter_mut().for_each(Interface::advance),
        }
        flood();
        round += 1;
    }
}

/// Overwrites all of the guest's pages, including its rings.
fn overwrite(frames: Area, round: u32) {
    let _own = frames.span().fill((round % 255) as u8 + 1);
}

/// Grants pages and revokes them.
fn grant_and_revoke(calls: &Rc<RefCell<Calls>>, table: Handle) {
    let create = |index| CreateGrantOp {
        table,
        index,
        frame: index,
        readonly: false,
        io: false,
    };
    let ops: Vec<CreateGrantOp> = (0..GRANTS).map(create).collect();
    let mut made = Vec::new();
    calls.borrow_mut().create_grants(&ops, &mut made);
    let revoke = |gref| RevokeOp {
        table,
        gref,
        how: Revocation::Force,
    };
    let revokes: Vec<RevokeOp> = made.into_iter().flatten().map(revoke).collect();
    calls.borrow_mut().revoke_grants(&revokes, &mut Vec::new());
}

/// Sets a state and a record of a connection, which the driver must process.
fn set_connection_state(platform: &dyn Platform, conn: ConnId, round: u32) {
    const STATES: [XenbusState; 4] = [
        XenbusState::Initialising,
        XenbusState::Initialised,
        XenbusState::Closing,
        XenbusState::Closed,
    ];
    let record: ConnectRecord = std::array::from_fn(|at| (at as u32 ^ round) as u8);
    if let Some(state) = STATES.get(round as usize % STATES.len()) {
        let _refused = platform.set_state(conn, *state, &record);
    }
}
