//! What becomes of a machine: nothing here but the words for it.

use abi::machine::{Domain, NetnsPlace, Setting};
use config::domain::VifConfig;
use config::live::Refitted;
use config::live::state::Returning;
use serde::{Deserialize, Serialize};

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ShapeChange {
    /// A guest comes, and is described so.
    Comes {
        place: usize,
        domain: Box<Domain>,
        guest: Setting,
    },
    /// A worker serves these interfaces, too, also when it is started again.
    Serves { worker: usize, vifs: Vec<VifConfig> },
    /// A guest is there.
    Up { name: String },
    /// A guest is being taken away.
    Leaves { name: String },
    /// A worker does not serve the interface of a connection any more.
    Unserves { worker: usize, conn: u32 },
    /// Nothing is left of a guest.
    Gone { name: String },
    /// Interfaces that are served have the rules and the limits of these from now on.
    Changes { vifs: Vec<VifConfig> },
    /// A guest is described so from now on.
    Described { name: String, guest: Setting },
    /// Files that were read after the start name these guests: they are these files' from now on,
    /// however they came.
    Adopted { names: Vec<String> },
    /// The machine has these NICs; what comes is not open yet.
    Refits(Refits),
    /// The workers are there with them; or, `back`, have those again that there were before.
    Refitted { back: bool },
    /// What has gone by that is closed.
    HasRefitted,
    /// Guests of the machine before are to come back.
    Return { guests: Vec<Returning> },
    /// One of them is there again, or does not come back.
    Returned { name: String },
    /// The interface of a device was removed, given by its domain's place and its number there;
    /// or, `back`, it is open again, or is no more.
    Lost { device: (usize, usize), back: bool },
    /// A guest that comes was asked for by a user; none: by files.
    Asked { name: String, user: Option<u32> },
    /// What a guest's name of a network namespace stands for.
    Found {
        guest: String,
        netns: String,
        place: NetnsPlace,
    },
}

/// Devices of workers, each by its worker's place and its number there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Refitting {
    /// To be opened before the workers are started again.
    pub(crate) opens: Vec<(usize, usize)>,
    /// To be closed when they are.
    pub(crate) closes: Vec<(usize, usize)>,
    /// What the workers had before; none: there is no way back any more.
    #[serde(default)]
    pub(crate) back: Option<Refits>,
}

/// The NICs of a machine, and what each worker, by its place, has of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Refits {
    pub(super) nics: Option<Vec<Setting>>,
    pub(super) workers: Vec<(usize, Refitted)>,
}
