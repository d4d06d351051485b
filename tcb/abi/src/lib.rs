//! Numbers and layouts that the monitor and its domains share.
//!
//! The monitor, every domain and the command line use this crate. It neither touches memory nor
//! makes system calls.

pub mod classic;
pub mod connect;
pub mod core;
pub mod counted;
pub mod counts;
mod encode;
#[cfg(feature = "json")]
pub mod firewall;
pub mod grant;
pub mod hypercall;
pub mod ids;
#[cfg(feature = "json")]
pub mod journal;
pub mod layout;
#[cfg(feature = "json")]
pub mod machine;
#[cfg(feature = "json")]
pub mod mailbox;
pub mod names;
pub mod pci;
#[cfg(feature = "json")]
pub mod reload;
#[cfg(feature = "json")]
pub mod restarts;
pub mod status;
pub mod user_ids;
pub mod version;
mod wire_enum;
pub mod xdp;

pub use connect::{RECORD_BYTES, Role, XenbusState};
pub use grant::GrantStatus;
pub use ids::{ConnId, DomId, GrantRef, Handle, Slot};
pub use layout::PAGE;
