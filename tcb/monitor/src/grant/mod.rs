//! Grants: who may use which page of whom, and who does so now.
//!
//! | module | what it is |
//! |---|---|
//! | `accounts` | every domain's memory, entries in use and window, behind one lock |
//! | `entry`, `window` | entries of a classic table; slots of a window |
//! | `churn` | how fast pages may be taken away from users, in the whole machine |
//! | `copy`, `map` | classic grants: hypercalls per use |
//! | `spaces` | address spaces that the workers of other domains change |
//! | [`counted`] | tables that lie with the user of the grants, and count its uses |
//! | [`flip`] | exchanges: pages that change hands |
//! | `audit` | whether the books of all of them agree |
//!
//! A domain writes entries of its own table at will ([`abi::grant::GrantEntry`]). What counts for
//! the monitor is its private record of the entries *in use*: an entry is read once, checked, and
//! captured by a compare-and-swap that sets its in-use flags; until the last use ends, nothing
//! that the domain writes over it changes anything.
//!
//! One lock covers all accounts. It is held for a batch's bookkeeping and never while bytes are
//! copied or an address space is changed: pin under the lock, act without it, then commit or
//! roll back under the lock. Counted grants and exchanges have registries and locks of their own,
//! in the order in which they are taken: a table's or an exchange's `op` (held while an agent
//! works), the accounts, the registry, a table's or an exchange's `state`; all but the first for
//! bookkeeping only.

mod accounts;
mod audit;
mod churn;
mod copy;
pub mod counted;
mod entry;
pub mod flip;
mod map;
mod spaces;
mod window;

pub use accounts::{Accounts, Grants};
pub use audit::{GrantAudit, InUse};
pub use churn::Churn;
pub use copy::Copier;
pub use counted::CountedGrants;
pub use flip::Exchanges;
pub use map::Mapper;
pub use spaces::{SharedSpace, Spaces};
