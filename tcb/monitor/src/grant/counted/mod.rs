//! Counted grants (the new grant mechanism of Ram's thesis): tables that lie with the user of the
//! grants (`abi::counted`) and count its uses, so that a use takes no hypercall.
//!
//! | module | what it is |
//! |---|---|
//! | `registry` | all tables, and each user's quarantine |
//! | `table` | one table: its sub-tables, and what the monitor knows of each entry |
//! | `entries` | what they grant, and how many mappings that takes |
//! | `lifecycle` | a table is made, bound, ended and cleared away |
//! | `change` | grants are made and revoked, in batches |
//! | `quarantine` | what revocations by force cost their user, and how long they wait for it |
//!
//! The granter's worker changes the user's address space, through the user's agent.
//!
//! Locks, in the order in which one thread may take them: a table's `op`; then, each for
//! bookkeeping alone, its `state`; the registry; the pins. The accounts ([`crate::grant::Grants`])
//! and an address space are taken under `op` only.
//!
//! A revocation that is forced upon a grant in use puts the entry into *quarantine*: it is not
//! granted again before its count is 0. The quarantine of a user is its *collateral*, and bounded:
//! each entry in it stands for one frame that the granter's was exchanged for. A user whose
//! collateral is used up is killed: it is given time to end its uses, and does not. By then the
//! pages are out of its reach.

mod change;
mod entries;
mod lifecycle;
mod quarantine;
mod registry;
mod table;

pub use registry::{CountedCounters, CountedGrants};
