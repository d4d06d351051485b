//! Configuration of a guest domain's program.

use super::link::{Offloads, RingFormat};
use crate::driver::{VifBuffers, is_zero};
use crate::guest::Endpoint;
use crate::lro::LroConfig;
use serde::{Deserialize, Serialize};

/// Configuration of a guest domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestConfig {
    /// Its interfaces.
    pub vifs: Vec<GuestVif>,
    /// Microseconds that it polls before it sleeps; 0 if it shares a CPU with the driver.
    pub spin_us: u32,
    /// Whether it yields the CPU after each poll that found nothing.
    pub yields: bool,
    /// Whether the polling time adapts to the lengths of the domain's pauses, up to `spin_us`.
    #[serde(default)]
    pub adapts: bool,
    /// Whether the hop ledger is on.
    pub ledger: bool,
    /// Large receive offload of its interfaces.
    pub lro: LroConfig,
}

/// One interface of a guest: a netfront for each queue, and one endpoint behind them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestVif {
    /// The guest's connection of each queue: one to each worker of the driver domain.
    pub conns: Vec<u32>,
    /// Its MAC.
    pub mac: [u8; 6],
    /// Maximum transmission unit, bytes of IP. A TSO packet may be longer.
    pub mtu: u32,
    /// The endpoint behind the netfront.
    pub endpoint: EndpointConfig,
    /// log2 of the pages of a ring that it requests, 0 … `RING_ORDER_MAX`.
    pub ring_order: u8,
    /// The layout of its rings. The guest uses Xen's if the driver domain does not offer it.
    pub ring_format: RingFormat,
    /// Its buffers. A part of the pool may be posted for frames to the guest; the rest is reserved
    /// for frames from it.
    #[serde(flatten)]
    pub buffers: VifBuffers,
    /// Pages of its pool of granted buffers, for both directions together.
    pub pool_pages: u32,
    /// The offloads that it requests.
    pub offloads: Offloads,
    /// Whether the guest forwards packets that it receives on this interface.
    pub forwards: bool,
    /// First frame of the receive pool if a device writes into it, otherwise `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_pool: Option<u32>,
    /// Pages of a file that the endpoint sends in place; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub file_pages: u32,
}

/// The maximum number of a file's pages that an interface grants at a time. Each may be a separate
/// mapping in the driver domain. This number leaves enough mappings for hundreds of other
/// connections.
pub const FILE_GRANTS: u32 = 512;

/// The endpoint behind a netfront.
pub type EndpointConfig = Endpoint<TapQueues, u32, VhostConfig>;

/// A TAP with virtio-net headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapQueues {
    /// Device number of each queue.
    pub devices: Vec<u32>,
}

/// A virtual machine, connected through its monitor's vhost-user socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VhostConfig {
    /// Number of the device: a socket.
    pub device: u32,
    /// Whether the manager connects to the virtual machine's monitor and passes each connection
    /// over the device. Otherwise the device is a listening socket.
    pub client: bool,
    /// Queue pairs that the virtual machine may use, 1 … 8.
    pub queue_pairs: u32,
    /// The maximum size of the virtual machine's mapped memory, bytes.
    pub memory_max: u64,
}
