//! Large receive offload, against the clauses of `specs/lro.md`.

#[path = "../common/mod.rs"]
mod common;

mod oracles;
mod packets;
mod rig;
