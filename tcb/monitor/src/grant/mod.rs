//! Grants: who may use which page of whom, and who does so now.
//!
//! A domain writes entries of its own table at will ([`abi::grant::GrantEntry`]). What counts for
//! the monitor is its private record of the entries *in use*: an entry is read once, checked, and
//! captured by a compare-and-swap that sets its in-use flags; until the last use ends, whatever
//! the domain writes over it changes nothing.
//!
//! One lock covers all tables. It is held for a batch's bookkeeping and never while bytes are
//! copied or an address space is changed: pin under the lock, act without it, then commit or
//! roll back under the lock. The new mechanism ([`NewGrants`]) and pages that change hands have tables
//! and locks of their own.

mod audit;
mod copy;
mod flip;
mod map;
mod new;
mod table;

pub use audit::{GrantAudit, InUse};
pub use copy::Copier;
pub use map::Mapper;
pub use new::{NewAudit, NewCounters, NewGrants, Space};
pub use table::{Grants, Tables};
