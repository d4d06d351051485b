//! The device domain: the device of a NIC of `kind = "soft"`, in a separate process
//! ([specs/dma.md](../../../specs/dma.md)).
//!
//! It stands where hardware stands: it owns the wire's end, and moves frames between the wire and
//! the buffers that the driver domain has posted. It reaches only pages that the driver domain has
//! granted to it.
//!
//! | module | contents |
//! |---|---|
//! | [`turn`] | the main loop |
//! | [`link`] | the connection to the driver domain, and its granted pages |
//! | [`lro`] | large receive offload of received frames |
//! | [`wire`], [`tap`], [`source`] | its wire: a cable in memory, a TAP, or a generator |

mod line;
pub mod link;
pub mod lro;
pub mod source;
pub mod tap;
pub mod turn;
pub mod wire;

pub use turn::run;
