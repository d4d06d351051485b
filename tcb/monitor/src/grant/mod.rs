//! Grants: the right of a domain to use a page of another domain, and the uses of that right.
//!
//! | module | contents |
//! |---|---|
//! | `accounts` | every domain's memory, holders, window and address space, behind one lock |
//! | `window` | slots of a window |
//! | `churn` | the machine-wide limit on the rate of revocations |
//! | [`counted`] | tables in the user's address space that count the uses of grants |
//! | [`mechanism`] | the interface to mechanisms for comparisons |
//! | `audit` | a check that the records of all mechanisms agree |
//!
//! One lock covers all accounts. It is held for a batch's bookkeeping and never while bytes are
//! copied or an address space is changed. Counted grants have separate locks, taken in this order:
//! a table's `op` (held while an agent works), the accounts, a table's `state`, the registry. All
//! but the first are held for bookkeeping only.

mod accounts;
mod audit;
mod churn;
pub mod counted;
pub mod mechanism;
mod window;

pub use accounts::{Account, Accounts, GrantAccounts, SharedSpace};
pub use churn::ChurnBudget;
pub use counted::CountedTables;
pub use mechanism::{GrantAudit, InUse, Mechanism};
pub use window::{WindowSlot, WindowSlots};
