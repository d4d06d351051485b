//! Changes of the specification. Each change replaces a part of it, so a repeated change has no
//! further effect.

use abi::machine::{ConfigValue, DomainSpec, Restarts};
use config::domain::VifConfig;
use config::live::WorkerNics;
use config::live::state::{AttachedGuest, Origin};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A guest's ports, by the worker's place.
pub(crate) type Ports = BTreeMap<usize, Vec<VifConfig>>;

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum SpecChange {
    /// Adds a guest, or replaces its entry.
    SetGuest(Box<GuestSpec>),
    /// Removes the guest with this name.
    RemoveGuest(String),
    /// Replaces the pending part of a change of NICs, and the NICs if `nics` is set.
    SetNics {
        nics: Option<NicChange>,
        pending: Option<PendingNicChange>,
    },
    /// Replaces the list of guests to attach again.
    SetSaved(Vec<AttachedGuest>),
    /// Removes the guest with this name from the list of guests to attach again.
    RemoveSaved(String),
    /// Records whether the interface of a device was removed.
    SetLost { device: (usize, usize), lost: bool },
    /// Replaces the restarts of the domain at a place.
    SetRestarts(usize, Restarts),
    /// Replaces the properties that the system lacks.
    SetMissing(BTreeSet<String>),
}

/// The specification of one guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GuestSpec {
    pub(crate) place: usize,
    pub(crate) domain: DomainSpec,
    /// Whether the guest is being attached or detached.
    pub(crate) is_changing: bool,
    /// The guest's section; `None` if it is unchanged since the machine's start.
    pub(crate) section: Option<ConfigValue>,
    /// The origin of a guest that was attached since the start.
    pub(crate) origin: Option<Origin>,
    pub(crate) ports: Ports,
}

/// The pending part of a change of NICs. Devices are given by the worker's place and their number
/// within the worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PendingNicChange {
    /// Devices to open before the workers restart.
    pub(crate) opens: Vec<(usize, usize)>,
    /// Devices to close after the workers have restarted.
    pub(crate) closes: Vec<(usize, usize)>,
    /// The previous NICs; `None` once they can no longer be restored.
    pub(crate) back: Option<NicChange>,
}

/// The NICs of a machine, and each worker's share of them, by place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NicChange {
    pub(super) nics: Option<Vec<ConfigValue>>,
    pub(super) workers: Vec<(usize, WorkerNics)>,
}
