//! Configuration: the file format (TOML), the machine that the monitor builds
//! ([`abi::machine::Machine`]), and the configuration of the domains' programs ([`domain`]). The
//! crate is pure: it reads no file and makes no system call.
//!
//! [`parse`] returns a [`Config`], or all mistakes in the text, each with its line and a remedy.
//! [`Config::machine`] computes the sizes. `docs/config.md` describes every key, and
//! `examples/every-key.toml` uses it.

mod address;
mod cable;
mod capture;
mod check;
mod deprecated;
pub mod domain;
mod driver;
mod files;
mod findings;
mod guest;
mod kernel_port;
mod keywords;
pub mod live;
pub mod lro;
mod machine;
mod model;
mod neighbour;
mod nic;
mod parse;
mod pdev;
mod port_security;
mod problem;
mod route;
pub mod rule;
mod sizes;
mod soft;
mod station;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod unreadable_keys;
mod uplink;
mod values;
mod vhost;

pub use address::{Cidr, InvalidAddress, MacAddress};
pub use cable::Cable;
pub use capture::CaptureFiles;
pub use driver::{DriverSection, VifBuffers, VifRings};
pub use files::ConfigFile;
pub use guest::{Endpoint, GuestSection, Vif};
pub use kernel_port::KernelPort;
pub use model::{Config, DEFAULT_NAME};
pub use nic::{NicKind, NicSection, XdpWire};
pub use parse::{parse, parse_with_source};
pub use pdev::Pdev;
pub use port_security::{PortSecurity, SourceGuard};
pub use problem::{ConfigPart, Finding, Problem, Problems, SourceInfo};
pub use route::RouteConfig;
pub use soft::{DevicePlace, SoftWire};
pub use uplink::{CONNECTIONS, InvalidForward, PortForward};
pub use vhost::{FileMode, VirtualMachine};
