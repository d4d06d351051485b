//! Endpoints other than a TAP or a TCP/IP station: devices that generate, consume or answer frames
//! inside the guest domain.
//!
//! | module | contents |
//! |---|---|
//! | [`sink`] | counts and discards frames |
//! | [`source`] | generates frames of one size |
//! | [`echo`] | sends every frame back |
//! | [`shared`] | one device behind several queues |
//! | [`vhost_user`] | a virtual machine |

pub mod echo;
pub mod shared;
pub mod sink;
pub mod source;
pub mod vhost_user;

pub use echo::Echo;
pub use shared::SharedDevice;
pub use sink::Sink;
pub use source::FrameSource;
