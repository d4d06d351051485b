//! The user's model of a machine. Every value has a default. [`crate::parse`] reads a model from a
//! file; experiments and tests build theirs directly.

mod capture;
mod config;
mod driver;
mod guest;
mod nic;
mod port_security;
mod station;
mod vhost;

pub use capture::CaptureFiles;
pub use config::{Config, DEFAULT_NAME};
pub(crate) use driver::SLOTS_PER_PAGE;
pub use driver::{DriverSection, VifBuffers, VifRings};
pub use guest::{Endpoint, GuestSection, Vif};
pub use nic::{Cable, DevicePlace, NicKind, NicSection, SoftWire, XdpWire};
pub use port_security::{PortSecurity, SourceGuard};
pub use station::KernelPort;
pub use vhost::{FileMode, VirtualMachine};
