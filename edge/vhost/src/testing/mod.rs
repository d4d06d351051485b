//! A mock virtual machine and monitor on a memfd, for tests, benches and fuzzers.
//!
//! | module | contents |
//! |---|---|
//! | [`system`] | the shim's system in an unconfined program |
//! | [`driver`] | the driver's side of a split virtqueue |
//! | [`front`] | the front end: memory, messages, descriptors |
//! | [`session`] | the messages of a front end |
//! | [`remote`] | a front end of a back end in another process |
//! | [`rig`] | a front end, a back end and its buffers, in one thread |
//! | [`hostile`] | peers that are driven by arbitrary bytes |

pub mod driver;
pub mod front;
pub mod hostile;
pub mod remote;
pub mod rig;
pub mod session;
pub mod system;

pub use driver::DriverRing;
pub use front::FrontEnd;
pub use remote::Remote;
pub use rig::Rig;
pub use session::Session;
pub use system::ProcessSystem;
