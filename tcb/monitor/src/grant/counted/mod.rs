//! Counted grants (the new grant mechanism of Ram's thesis): tables in the user's address space
//! (`abi::counted`) that count the uses of grants, so that a use takes no hypercall.
//!
//! | module | contents |
//! |---|---|
//! | `registry` | all tables, and each user's quarantine |
//! | `table` | one table: its sub-tables, and the monitor's state of each entry |
//! | `entries` | the grants of the entries, and the number of mappings that they take |
//! | `lifecycle` | creation, binding, end and teardown of a table |
//! | `change` | creation and revocation of grants, in batches |
//! | `device_pages` | the pages of a table that are mapped for a device |
//! | `share` | the device of a user, which may access pages granted for I/O |
//! | `quarantine` | the collateral and the waiting time of forced revocations |
//!
//! The granter's worker changes the user's address space, through the user's agent.
//!
//! Lock order within a thread: a table's `op`, its `state`, the registry, the pins. All but `op`
//! are held for bookkeeping only. A thread that holds `state`, the registry or the pins locks
//! neither the accounts ([`crate::grant::GrantAccounts`]) nor an address space.
//!
//! Revoking a grant by force while it is in use puts the entry into *quarantine*: it cannot be
//! granted again until its count is 0. A user's quarantine is bounded by its *collateral*: each
//! entry in it represents one frame that was exchanged for the granter. The monitor kills a user
//! that exhausts its collateral and does not end its uses within its *wait budget*; by then the
//! user has already lost access to the pages.

mod change;
mod device_pages;
mod entries;
mod lifecycle;
mod quarantine;
mod registry;
mod share;
mod table;

pub use registry::{CountedCounters, CountedTables};
