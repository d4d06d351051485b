//! Grants: who may use which page of whom, and who does so now.
//!
//! | module | what it is |
//! |---|---|
//! | `accounts` | every domain's memory, holders, window and address space, behind one lock |
//! | `window` | slots of a window |
//! | `churn` | how fast pages may be taken away from users, in the whole machine |
//! | [`counted`] | tables that lie with the user of the grants, and count its uses |
//! | [`mechanism`] | what a monitor for comparisons has beside them |
//! | `audit` | whether the books of all of them agree |
//!
//! One lock covers all accounts. It is held for a batch's bookkeeping and never while bytes are
//! copied or an address space is changed. Counted grants have registries and locks of their own, in
//! the order in which they are taken: a table's `op` (held while an agent works), the accounts, the
//! registry, a table's `state`; all but the first for bookkeeping only.

mod accounts;
mod audit;
mod churn;
pub mod counted;
pub mod mechanism;
mod window;

pub use accounts::{Account, Accounts, Grants, SharedSpace};
pub use churn::Churn;
pub use counted::CountedGrants;
pub use mechanism::{GrantAudit, InUse, Mechanism};
pub use window::{Window, WindowSlot};
