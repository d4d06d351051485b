//! Columns without a wire: raw frames through the driver domain and through switches that are not
//! ours, and files.

use super::config::Config;
use ::config::domain::{GrantMode, RingFormat};
use serde::Deserialize;

/// Raw frames from a guest through the driver to another.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frames {
    /// The column's name.
    pub name: String,
    /// How the driver gets at granted pages, as a configuration file has it.
    pub grants: String,
    /// Bytes of a frame.
    pub size: Vec<u32>,
    /// What is sent, as a share of what the first column of the plan carries of this size; 1 is as
    /// fast as it goes, and comes first there.
    #[serde(default = "full_load")]
    pub load: Vec<f64>,
    /// Guests of the machine, each of which sends to itself.
    #[serde(default = "one")]
    pub guests: u32,
    /// How many of them send, and share the load.
    #[serde(default = "one")]
    pub active: u32,
    /// Whether the guests write and read every byte of a frame.
    #[serde(default)]
    pub touch: bool,
    /// Buffers for frames from a guest; none: as many as usual. Half of them hold small frames.
    pub from_guest: Option<u32>,
    /// Buffers that wait for frames to a guest; none: as many as usual.
    pub to_guest: Option<u32>,
    /// How rings lie in their pages; none: as usual.
    pub ring: Option<RingFormat>,
}

fn one() -> u32 {
    1
}

fn full_load() -> Vec<f64> {
    vec![1.0]
}

impl Frames {
    /// The configuration of one size and load, with the keys in which the column varies.
    #[must_use]
    pub fn config(&self, size: u32, load: f64) -> Config {
        let mut config = of_size(&self.name, &self.size, size);
        if self.load != full_load() {
            config = config.with("load", &load.to_string());
        }
        config
    }
}

/// Raw frames from a guest through a switch that is not ours and back.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// The column's name.
    pub name: String,
    /// The switch.
    pub switch: PeerKind,
    /// Bytes of a frame.
    pub size: Vec<u32>,
    /// Whether the guest writes and reads every byte of a frame.
    #[serde(default)]
    pub touch: bool,
}

impl Peer {
    /// The configuration of one size.
    #[must_use]
    pub fn config(&self, size: u32) -> Config {
        of_size(&self.name, &self.size, size)
    }
}

/// A file in a guest's frames, which is sent to another guest from where it lies.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileColumn {
    /// The column's name.
    pub name: String,
    /// The configuration of the paper that it stands for, if it does.
    pub paper: Option<String>,
    /// How the driver gets at granted pages, as a configuration file has it.
    pub grants: GrantMode,
    /// KB of the file.
    pub kb: Vec<u32>,
}

impl FileColumn {
    /// The configuration of one size.
    #[must_use]
    pub fn config(&self, kb: u32) -> Config {
        Config::new(&self.name, &[("kb", &kb.to_string())])
    }
}

/// A switch that is not of this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerKind {
    /// testpmd over memif, whose client (the guest) lends its buffers: no copy of its own.
    MemifZeroCopy,
    /// testpmd over vhost-user.
    Vhost,
    /// Open vSwitch over vhost-user, with one flow.
    OvsDpdk,
}

/// A column's configuration of one size, with that as a key if there are several.
fn of_size(column: &str, sizes: &[u32], size: u32) -> Config {
    let config = Config::new(column, &[]);
    match sizes.len() {
        0 | 1 => config,
        _ => config.with("size", &size.to_string()),
    }
}
