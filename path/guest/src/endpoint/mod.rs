//! What stands behind a netfront when it is neither a TAP nor a TCP/IP station: devices that make,
//! take or answer frames inside the guest domain.
//!
//! | module | what it is |
//! |---|---|
//! | [`sink`] | counts frames and throws them away |
//! | [`source`] | makes frames of one size |
//! | [`echo`] | sends every frame back |
//! | [`shared`] | one of them behind several queues |

pub mod echo;
pub mod shared;
pub mod sink;
pub mod source;

pub use echo::Echo;
pub use shared::Shared;
pub use sink::Sink;
pub use source::Source;
