//! Configuration of the domains' programs, as JSON: the opaque `config` text of
//! [`abi::machine::DomainSpec`].
//!
//! The command line writes these texts, the monitor passes them on without reading them, and the
//! programs `driver`, `guest` and `device` read them at their start. A device's number is its index
//! in [`abi::machine::DomainSpec::devices`]. A domain's connections are numbered in the order of
//! [`abi::machine::Machine::connections`]; those in which it is the frontend are first.

mod driver;
mod guest;
mod link;

pub use crate::address::Cidr;
pub use crate::cable::CableConfig;
pub use crate::capture::CaptureSpec;
pub use crate::guest::{BURST_BYTES, FrameLimit, PortSettings, Source};
pub use crate::lro::LroConfig;
pub use crate::machine::device::{DeviceConfig, WireConfig};
pub use crate::nic::{FRAME_EXTRA_BYTES, ModerationConfig, NicSettings, VmqConfig};
pub use crate::port_security::PortGuard;
pub use crate::soft::{FrameSource, Rings};
pub use crate::station::{StackApp, StackConfig};
pub use driver::{
    DedicatedQueueConfig, DeviceQueueConfig, DriverConfig, GSO_BYTES, LINEAR_BUFFERS, LINEAR_BYTES,
    NicConfig, NicKindConfig, QUEUE_BYTES, VifConfig, flow_table_pages,
};
pub use guest::{EndpointConfig, FILE_GRANTS, GuestConfig, GuestVif, TapQueues, VhostConfig};
pub use link::{
    BUFFER_BYTES, BufferSize, GrantMode, Offloads, RING_ORDER_MAX, RingFormat, bytes_per_s,
};
