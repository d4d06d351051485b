//! `grantway-docker`: Docker's remote network driver. Docker calls it over a UNIX socket when a
//! network is created and when a container joins it; the container becomes a guest of a running
//! machine.
//!
//! The interface begins as a persistent TAP in Docker's namespace. Docker moves it into the
//! container, renames it and assigns its addresses. Then the machine attaches a guest there, which
//! takes over the interface. From then on the machine treats the interface like any other guest's.

mod api;
mod attach;
mod driver;
mod endpoint;
mod http;
mod network;
mod ports;
mod reconciler;
mod record;
mod response;
mod server;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;

pub use driver::{Folders, RemoteDriver};
pub use reconciler::reconcile;
pub use server::serve;
