//! Changes of the specification.

use abi::machine::{Domain, NetnsId, Setting};
use config::domain::VifConfig;
use config::live::WorkerNics;
use config::live::state::SavedGuest;
use serde::{Deserialize, Serialize};

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum SpecChange {
    /// A guest is being attached.
    #[serde(rename = "Comes")]
    Attaching {
        place: usize,
        domain: Box<Domain>,
        guest: Setting,
    },
    /// A worker serves these interfaces, also after a restart.
    Serves { worker: usize, vifs: Vec<VifConfig> },
    /// A guest is attached.
    #[serde(rename = "Up")]
    Attached { name: String },
    /// A guest is being removed.
    #[serde(rename = "Leaves")]
    Detaching { name: String },
    /// A worker has released the port of a connection.
    #[serde(rename = "Unserves")]
    PortReleased { worker: usize, conn: u32 },
    /// A guest is removed.
    #[serde(rename = "Gone")]
    Removed { name: String },
    /// Ports get the rules and limits of these.
    #[serde(rename = "Changes")]
    PortsChanged { vifs: Vec<VifConfig> },
    /// A guest has another section.
    Described { name: String, guest: Setting },
    /// Files that were read after the start name these guests, which belong to the files from now
    /// on, also if clients have attached them.
    Adopted { names: Vec<String> },
    /// The machine has these NICs. New ones are not open yet.
    #[serde(rename = "Refits")]
    ChangeNics(NicChange),
    /// The workers run with these NICs; `back`: they get those before again.
    #[serde(rename = "Refitted")]
    NicsChanged { back: bool },
    /// The devices of removed NICs are closed.
    #[serde(rename = "HasRefitted")]
    NicDevicesClosed,
    /// Guests of the machine before are to return.
    #[serde(rename = "Return")]
    AwaitReattach { guests: Vec<SavedGuest> },
    /// One of them has returned, or will not.
    #[serde(rename = "Returned")]
    Reattached { name: String },
    /// The interface of a device was removed; `back`: it is open again, or the device is closed.
    Lost { device: (usize, usize), back: bool },
    /// A user has asked for a new guest; `None`: files name it.
    #[serde(rename = "Asked")]
    RequestedBy { name: String, user: Option<u32> },
    /// A name of a network namespace stands for this one.
    #[serde(rename = "Found")]
    NamespaceFound {
        guest: String,
        netns: String,
        place: NetnsId,
    },
}

/// Devices of workers, by the worker's place and the number there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PendingNicChange {
    /// Devices to open before the workers restart.
    pub(crate) opens: Vec<(usize, usize)>,
    /// Devices to close when they have restarted.
    pub(crate) closes: Vec<(usize, usize)>,
    /// The NICs before; `None`: they are not restored any more.
    #[serde(default)]
    pub(crate) back: Option<NicChange>,
}

/// The NICs of a machine, and each worker's part of them, by place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NicChange {
    pub(super) nics: Option<Vec<Setting>>,
    pub(super) workers: Vec<(usize, WorkerNics)>,
}
