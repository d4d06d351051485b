//! Configuration: what people write (TOML), what the monitor builds ([`abi::machine::Machine`]),
//! and what the domains' programs are told ([`domain`]). Pure: no file is read, nothing is asked
//! of the system.
//!
//! [`parse`] makes a [`Config`] of a file's text or says everything that is wrong with it, each
//! with its line and what would be right. [`Config::machine`] computes the sizes. Every key is
//! described in `docs/config.md` and used in `examples/every-key.toml`.

mod address;
mod check;
pub mod domain;
mod files;
pub mod live;
pub mod lro;
mod machine;
mod model;
mod old;
mod parse;
mod pdev;
mod problem;
mod route;
pub mod rule;
mod sizes;
mod table;
#[cfg(test)]
mod tests;
mod unread;
mod uplink;
mod words;

pub use address::{Cidr, Mac, NotAnAddress};
pub use files::File;
pub use model::{
    Buffers, CaptureFiles, Claims, Config, DEFAULT_NAME, Driver, Endpoint, Guest, KernelPort, Kind,
    Nic, Queues, Ring, SourceGuard, Station, Vif, XdpWire,
};
pub use parse::{parse, parse_located};
pub use pdev::Pdev;
pub use problem::{Finding, Located, Place, Problem, Problems};
pub use route::Route;
pub use uplink::{Forwarded, NoForward};
