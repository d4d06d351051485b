//! Columns without a wire: raw frames through the driver domain or a third-party switch, and files.

use super::config::ColumnConfig;
use ::config::domain::{GrantMode, RingFormat};
use serde::Deserialize;

/// Raw frames from one guest through the driver domain to another.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frames {
    /// Column name.
    pub name: String,
    /// Grant mechanism, as in a configuration file.
    pub grants: String,
    /// Frame sizes, bytes.
    pub size: Vec<u32>,
    /// Offered loads as shares of the maximum rate of the plan's first column at the same frame
    /// size. The first column begins with 1.
    #[serde(default = "full_load")]
    pub load: Vec<f64>,
    /// Number of guests, each of which sends to itself.
    #[serde(default = "one")]
    pub guests: u32,
    /// Number of guests that send. They share the load.
    #[serde(default = "one")]
    pub active: u32,
    /// True if the guests write and read every byte of a frame.
    #[serde(default)]
    pub touch: bool,
    /// Number of buffers for frames from a guest; half of them hold small frames. `None`: the
    /// default.
    pub from_guest: Option<u32>,
    /// Number of frames that a sender keeps in flight to the driver domain; `None`: one per buffer.
    pub in_flight: Option<u32>,
    /// Number of posted buffers for frames to a guest; `None`: the default.
    pub to_guest: Option<u32>,
    /// Ring layout; `None`: the default.
    pub ring: Option<RingFormat>,
    /// Number of UDP flows among which a sender rotates; 0: its frames are not IP.
    #[serde(default)]
    pub flows: u16,
    /// True if the receiving interfaces have a stateful firewall that tracks all flows.
    #[serde(default)]
    pub stateful: bool,
    /// Rule of the receiving interfaces that allows all frames. It keeps them on the slow path.
    /// Unset: none.
    pub allow: Option<FrameRule>,
    /// True if a NIC with descriptor rings receives the frames into a dedicated queue of the guest.
    /// Its device runs on the first core. The driver domain and the guest share the second one.
    #[serde(default)]
    pub nic: bool,
}

/// A rule that allows all frames of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameRule {
    /// It has no `state`.
    Any,
    /// It has the `state` of known flows.
    Established,
}

fn one() -> u32 {
    1
}

fn full_load() -> Vec<f64> {
    vec![1.0]
}

impl Frames {
    /// Returns the configuration of one size and load, with the keys that the column varies.
    #[must_use]
    pub fn config(&self, size: u32, load: f64) -> ColumnConfig {
        let mut config = of_size(&self.name, &self.size, size);
        if self.load != full_load() {
            config = config.with("load", &load.to_string());
        }
        config
    }
}

/// Raw frames from a guest through a third-party switch and back.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Column name.
    pub name: String,
    /// The switch.
    pub switch: PeerKind,
    /// Frame sizes, bytes.
    pub size: Vec<u32>,
    /// True if the guest writes and reads every byte of a frame.
    #[serde(default)]
    pub touch: bool,
}

impl Peer {
    /// Returns the configuration of one size.
    #[must_use]
    pub fn config(&self, size: u32) -> ColumnConfig {
        of_size(&self.name, &self.size, size)
    }
}

/// A file in a guest's memory that the guest sends to another guest without copying.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileColumn {
    /// Column name.
    pub name: String,
    /// The configuration of the paper that this column reproduces.
    pub paper: Option<String>,
    /// Grant mechanism, as in a configuration file.
    pub grants: GrantMode,
    /// File sizes, KB.
    pub kb: Vec<u32>,
}

impl FileColumn {
    /// Returns the configuration of one size.
    #[must_use]
    pub fn config(&self, kb: u32) -> ColumnConfig {
        ColumnConfig::new(&self.name, &[("kb", &kb.to_string())])
    }
}

/// A third-party switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerKind {
    /// testpmd over memif. The client (the guest) shares its buffers, so it makes no copy.
    MemifZeroCopy,
    /// testpmd over vhost-user.
    Vhost,
    /// Open vSwitch over vhost-user, with one flow.
    OvsDpdk,
    /// testpmd between two virtual machines, over vhost-user.
    VmTestpmd,
    /// This project's driver domain between two virtual machines, each behind its shim.
    VmGrantway,
}

impl PeerKind {
    /// Returns whether the ends are two virtual machines.
    #[must_use]
    pub const fn has_vms(self) -> bool {
        matches!(self, Self::VmTestpmd | Self::VmGrantway)
    }
}

/// Returns the configuration of one size, with a `size` key if the column has several.
fn of_size(column: &str, sizes: &[u32], size: u32) -> ColumnConfig {
    let config = ColumnConfig::new(column, &[]);
    match sizes.len() {
        0 | 1 => config,
        _ => config.with("size", &size.to_string()),
    }
}
