//! Hypercalls: a call is read from the domain's call page and decoded once, executed, and answered.
//!
//! | module | contents |
//! |---|---|
//! | `page` | the call page, word by word |
//! | `call` | [`DecodedCall`], decoded by a pure function |
//! | `budget` | limits on the cost that a domain's calls impose on other domains |
//! | `execute` | execution of a call |
//! | `server` | one domain's calls, from the page to the result |
//! | `shared` | state that the workers of all domains share |
//!
//! Every word of the page may change while it is read, and may hold any value. So the monitor reads
//! the kind, the count and each operation once into private memory, and uses only that copy. No
//! value in the page can make the monitor panic or loop.

mod budget;
mod call;
mod execute;
mod page;
mod server;
mod shared;

pub use call::{DecodedCall, Operations};
pub use page::CallPage;
pub use server::{CallCounters, HypercallServer};
pub use shared::MonitorState;
