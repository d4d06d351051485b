//! Configuration: the file format (TOML), the machine that the monitor builds
//! ([`abi::machine::Machine`]), and the configuration of the domains' programs ([`domain`]). The
//! crate is pure: it reads no file and makes no system call.
//!
//! [`parse`] returns a [`Config`], or all mistakes in the text, each with its line and a remedy.
//! [`Config::machine`] computes the sizes. `docs/config.md` describes every key, and
//! `examples/every-key.toml` uses it.

mod address;
mod check;
mod deprecated;
pub mod domain;
mod files;
mod keywords;
pub mod live;
pub mod lro;
mod machine;
mod model;
mod parse;
mod pdev;
mod problem;
mod route;
pub mod rule;
mod sizes;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod unreadable_keys;
mod uplink;

pub use address::{Cidr, InvalidAddress, MacAddress};
pub use files::ConfigFile;
pub use model::{
    Cable, CaptureFiles, Config, DEFAULT_NAME, DevicePlace, DriverSection, Endpoint, FileMode,
    GuestSection, KernelPort, NicKind, NicSection, PortSecurity, SoftWire, SourceGuard, Vif,
    VifBuffers, VifRings, VirtualMachine, XdpWire,
};
pub use parse::{parse, parse_with_source};
pub use pdev::Pdev;
pub use problem::{ConfigPart, Finding, Problem, Problems, SourceInfo};
pub use route::RouteConfig;
pub use uplink::{CONNECTIONS, InvalidForward, PortForward};
