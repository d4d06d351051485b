//! Large receive offload, against the clauses of `specs/lro.md`.

#[path = "../common/mod.rs"]
mod common;

mod forms;
mod limits;
mod model;
mod oracles;
mod packets;
mod policies;
mod prediction;
mod recorded;
mod reversible;
mod rig;
mod rules;
