//! Changes of the specification.

use abi::machine::{Domain, NetnsPlace, Setting};
use config::domain::VifConfig;
use config::live::Refitted;
use config::live::state::Returning;
use serde::{Deserialize, Serialize};

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum SpecChange {
    /// A guest is being attached.
    Comes {
        place: usize,
        domain: Box<Domain>,
        guest: Setting,
    },
    /// A worker serves these interfaces, also after a restart.
    Serves { worker: usize, vifs: Vec<VifConfig> },
    /// A guest is attached.
    Up { name: String },
    /// A guest is being removed.
    Leaves { name: String },
    /// A worker has released the port of a connection.
    Unserves { worker: usize, conn: u32 },
    /// A guest is removed.
    Gone { name: String },
    /// Ports get the rules and limits of these.
    Changes { vifs: Vec<VifConfig> },
    /// A guest has another section.
    Described { name: String, guest: Setting },
    /// Files that were read after the start name these guests, which belong to the files from now
    /// on, also if clients have attached them.
    Adopted { names: Vec<String> },
    /// The machine has these NICs. New ones are not open yet.
    Refits(Refits),
    /// The workers run with these NICs; `back`: they get those before again.
    Refitted { back: bool },
    /// The devices of removed NICs are closed.
    HasRefitted,
    /// Guests of the machine before are to return.
    Return { guests: Vec<Returning> },
    /// One of them has returned, or will not.
    Returned { name: String },
    /// The interface of a device was removed; `back`: it is open again, or the device is closed.
    Lost { device: (usize, usize), back: bool },
    /// A user has asked for a new guest; `None`: files name it.
    Asked { name: String, user: Option<u32> },
    /// A name of a network namespace stands for this one.
    Found {
        guest: String,
        netns: String,
        place: NetnsPlace,
    },
}

/// Devices of workers, by the worker's place and the number there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Refitting {
    /// Devices to open before the workers restart.
    pub(crate) opens: Vec<(usize, usize)>,
    /// Devices to close when they have restarted.
    pub(crate) closes: Vec<(usize, usize)>,
    /// The NICs before; `None`: they are not restored any more.
    #[serde(default)]
    pub(crate) back: Option<Refits>,
}

/// The NICs of a machine, and each worker's part of them, by place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Refits {
    pub(super) nics: Option<Vec<Setting>>,
    pub(super) workers: Vec<(usize, Refitted)>,
}
