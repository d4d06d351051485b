//! The configuration of a device domain.

use crate::cable::CableConfig;
use crate::soft::{FrameSource, Rings};
use serde::{Deserialize, Serialize};

/// The configuration of a device in a separate domain, whose only connection is that to the driver
/// domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Maximum transmission unit, bytes of IP.
    pub mtu: u32,
    /// Rate of its wire, megabits of frames per second; unset: unlimited.
    pub rate_mbps: Option<f64>,
    /// Its wire.
    pub wire: WireConfig,
    /// The rings.
    pub rings: Rings,
    /// The number of pages that the driver domain may grant to it.
    pub pages: u32,
    /// First slot of the part of its window that maps pages of guests with dedicated queues.
    #[serde(default)]
    pub guests_slot: u32,
    /// Number of these slots.
    #[serde(default)]
    pub guests_slots: u32,
    /// Number of dedicated queues.
    #[serde(default)]
    pub queues: u32,
    /// Number of buffers for the station at the far end of a cable; 0: no station.
    pub buffers: u32,
    /// Number of buffers in which the device merges received frames; 0: no merging.
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
