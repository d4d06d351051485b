//! Changes of the specification. Each one replaces a part of it, so that a repeated change has no
//! further effect.

use crate::window_slots::Ports;
use abi::machine::{DomainSpec, Setting};
use config::live::WorkerNics;
use config::live::state::{Origin, SavedGuest};
use serde::{Deserialize, Serialize};

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum SpecChange {
    /// Adds a guest, or replaces its entry.
    SetGuest(Box<GuestSpec>),
    /// Removes a guest, which has this name.
    RemoveGuest(String),
    /// Replaces the NICs, unless `nics` is `None`, and the pending remainder of the change.
    SetNics {
        nics: Option<NicChange>,
        pending: Option<PendingNicChange>,
    },
    /// Replaces the list of guests that are to be attached again.
    SetSaved(Vec<SavedGuest>),
    /// Removes the guest of this name from that list.
    RemoveSaved(String),
    /// Records whether the interface of a device was removed.
    SetLost { device: (usize, usize), lost: bool },
}

/// Everything that the specification has about one guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GuestSpec {
    pub(crate) place: usize,
    pub(crate) domain: DomainSpec,
    /// Whether it is being attached or detached.
    pub(crate) is_changing: bool,
    /// Its section; `None`: unchanged since the file from which the machine was started.
    pub(crate) section: Option<Setting>,
    /// The origin of a guest that was attached since the start.
    pub(crate) origin: Option<Origin>,
    pub(crate) ports: Ports,
}

/// Devices of workers, by the worker's place and the number there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PendingNicChange {
    /// Devices to open before the workers restart.
    pub(crate) opens: Vec<(usize, usize)>,
    /// Devices to close when they have restarted.
    pub(crate) closes: Vec<(usize, usize)>,
    /// The previous NICs; `None`: they are no longer restored.
    pub(crate) back: Option<NicChange>,
}

/// The NICs of a machine, and each worker's part of them, by place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NicChange {
    pub(super) nics: Option<Vec<Setting>>,
    pub(super) workers: Vec<(usize, WorkerNics)>,
}
