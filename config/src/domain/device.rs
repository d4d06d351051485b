//! The configuration of a device domain.

use super::driver::{CableConfig, Rings};
use crate::address::MacAddress;
use serde::{Deserialize, Serialize};

/// The configuration of a device in a separate domain. Its only connection is that to the driver
/// domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Bytes of IP in the longest frame.
    pub mtu: u32,
    /// Rate of its wire, megabits of frames a second; unset: unlimited.
    pub rate_mbps: Option<f64>,
    /// Its wire.
    pub wire: WireConfig,
    /// The rings.
    pub rings: Rings,
    /// The number of pages that the driver domain may grant to it.
    pub pages: u32,
    /// First slot of its window for pages of guests with dedicated queues.
    #[serde(default)]
    pub guests_slot: u32,
    /// Number of these slots.
    #[serde(default)]
    pub guests_slots: u32,
    /// Number of dedicated queues.
    #[serde(default)]
    pub queues: u32,
    /// Buffers of the station at the far end of a cable; 0: there is none.
    pub buffers: u32,
    /// Buffers of received frames that the device merges; 0: it merges none.
    #[serde(default)]
    pub lro_buffers: u32,
}

/// The wire of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum WireConfig {
    /// A cable in memory.
    Cable(CableConfig),
    /// A TAP, without offloads.
    Tap {
        /// Number of the device.
        device: u32,
    },
    /// A generator of frames.
    Source(FrameSource),
}

/// Frames that a wire generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameSource {
    /// Destination MAC.
    pub to: MacAddress,
    /// Bytes of a frame.
    pub size: u32,
}
