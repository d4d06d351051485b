//! Hypercalls: a call is read from the domain's call page and decoded once, done, and answered.
//!
//! | module | what it is |
//! |---|---|
//! | `page` | the call page, word by word |
//! | `call` | what a call asks for: [`Call`], decoded by a pure function |
//! | `budget` | what a domain's calls may cost others |
//! | `execute` | does it |
//! | `server` | one domain's calls, from the page to the answer |
//! | `shared` | what the workers of all domains share |
//!
//! Every word of the page may change while it is read, and may hold anything. So the kind, the
//! count and each operation are read once into the monitor's own memory, and only that copy is
//! looked at. Nothing that stands in the page can make the monitor panic or loop.

mod budget;
mod call;
mod execute;
mod page;
mod server;
mod shared;

pub use call::{Call, Operations};
pub use page::CallPage;
pub use server::{CallCounters, Server};
pub use shared::Shared;
