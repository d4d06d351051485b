//! Flow tables, clause by clause (`specs/firewall.md`) and against a model.

mod attacks;
mod model;
mod packets;
mod protocols;
mod survival;

use net::flows::{Classification, Direction, FlowState, Flows, Subject, TableFull};
use shmem::{Area, Span};

const KEYS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];
const IDENTITY: u64 = 7;
const SECOND: u64 = 1_000_000_000;

const NEW: Classification = Classification::Is(FlowState::New);
const ESTABLISHED: Classification = Classification::Is(FlowState::Established);
const RELATED: Classification = Classification::Is(FlowState::Related);

/// Zeroed memory for a table.
fn memory(flows: usize) -> Span {
    Area::anonymous(Flows::bytes(flows))
        .unwrap()
        .span()
        .take(Flows::bytes(flows))
}

fn table(flows: usize) -> Flows {
    Flows::new(memory(flows), IDENTITY, KEYS, 0).unwrap()
}

/// Returns the status of a frame, and passes the frame unless its status is unknown.
fn go(table: &mut Flows, direction: Direction, frame: &[u8], now_ns: u64) -> Classification {
    try_to_go(table, direction, frame, now_ns).unwrap()
}

fn try_to_go(
    table: &mut Flows,
    direction: Direction,
    frame: &[u8],
    now_ns: u64,
) -> Result<Classification, TableFull> {
    let subject = Subject::of(frame);
    let lookup = table.classify(direction, &subject, now_ns);
    if lookup.classification != Classification::Unknown {
        table.pass(direction, &subject, &lookup, frame.len(), now_ns)?;
    }
    Ok(lookup.classification)
}

/// Returns the status of a frame without passing it.
fn classify(table: &Flows, direction: Direction, frame: &[u8], now_ns: u64) -> Classification {
    table
        .classify(direction, &Subject::of(frame), now_ns)
        .classification
}
