//! Edits of the machine's specification that a client, a reload or a return waits for.

use crate::build::PendingOpen;
use crate::reload::ReloadProgress;
use crate::spec::AdmittedGuest;
use abi::machine::Setting;
use abi::reload::Reloaded;

/// Time within which an edit is carried out. An attach or a change that takes longer fails; a
/// detach continues, but its requesters get an error.
pub(super) const EDIT_NS: u64 = 20_000_000_000;

/// The origin of an edit, which receives the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EditOrigin {
    /// A client, by its number.
    Client(u64),
    /// The reload that is under way.
    Reload,
    /// The machine before this one, whose guests return.
    Before,
}

/// An edit of one guest.
#[derive(Debug)]
pub(super) struct Edit {
    pub(super) place: usize,
    pub(super) began_ns: u64,
    pub(super) kind: EditKind,
    /// The requesters, which receive the outcome. A requester with a text receives it as an error:
    /// the guest is removed because its attach failed.
    pub(super) origins: Vec<(EditOrigin, Option<String>)>,
}

#[derive(Debug)]
pub(super) enum EditKind {
    /// The ports in it are to be connected.
    Attach(AdmittedGuest),
    Detach,
    /// The rules and limits of the guest's ports change.
    Change(Setting),
}

/// A reload that is under way.
#[derive(Debug)]
pub(super) struct Reload {
    pub(super) client: u64,
    pub(super) began_ns: u64,
    /// The answer to the client.
    pub(super) answer: Reloaded,
    /// The guests that the files name, which belong to the files when all steps are done.
    pub(super) named: Vec<String>,
    pub(super) course: ReloadProgress,
}

/// Domains that restart because a client or a reload has asked for it.
#[derive(Debug)]
pub(super) struct Restarting {
    pub(super) origin: EditOrigin,
    /// The number of restarts before, by the domain's place.
    pub(super) starts: Vec<(usize, u64)>,
    pub(super) goal: RestartGoal,
}

/// A reload's change of NICs whose devices netd still opens.
#[derive(Debug)]
pub(super) struct OpeningNics {
    /// The number of restarts of the workers, by place.
    pub(super) starts: Vec<(usize, u64)>,
    pub(super) devices: Vec<PendingOpen>,
}

/// The state of restarting domains in which the request is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartGoal {
    /// A new process is connected.
    Up,
    /// The workers have ended, and start with the next step, which changes NICs as well.
    Ended,
    /// The workers run with other NICs.
    NicsChanged,
    /// The workers are connected to all guests that connect in time.
    Connected,
}
