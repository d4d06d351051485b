//! The device domain: the device of a NIC of `kind = "soft"`, as a separate process
//! ([specs/dma.md](../../../specs/dma.md)).
//!
//! It replaces hardware: it owns the end of the wire, and transfers frames between the wire and the
//! buffers that the driver domain has posted. It can access only pages that the driver domain has
//! granted to it.
//!
//! | module | contents |
//! |---|---|
//! | [`turn`] | the main loop |
//! | [`link`] | the connection to the driver domain, and the granted pages |
//! | [`lro`] | large receive offload of received frames |
//! | [`wire`], [`tap`], [`source`] | the wire: a cable in memory, a TAP, or a generator |

pub mod link;
pub mod lro;
mod rate;
pub mod source;
pub mod tap;
pub mod turn;
pub mod wire;

pub use turn::run;
