//! Edits of the machine's specification, for a client, a reload or the reattachment of a saved
//! guest.

use crate::reload::ReloadProgress;
use crate::spec::AdmittedGuest;
use abi::machine::ConfigValue;
use abi::reload::ReloadReply;

/// Time limit of an edit. An attach or a change that takes longer fails; a detach continues, but
/// its requesters receive an error.
pub(super) const EDIT_TIMEOUT_NS: u64 = 20_000_000_000;

/// The requester of an edit, which receives the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EditOrigin {
    /// A client, by its number.
    Client(u64),
    /// The current reload.
    Reload,
    /// The previous machine, whose guests are attached again.
    PreviousMachine,
}

/// An edit of one guest.
#[derive(Debug)]
pub(super) struct PendingEdit {
    pub(super) place: usize,
    pub(super) began_ns: u64,
    pub(super) kind: EditKind,
    /// The requesters, which receive the outcome. A requester with a text receives it as an error:
    /// its attach failed, and the guest is being removed.
    pub(super) origins: Vec<(EditOrigin, Option<String>)>,
}

#[derive(Debug)]
pub(super) enum EditKind {
    /// Attaches a guest, whose ports are not connected yet.
    Attach(AdmittedGuest),
    Detach,
    /// Changes the rules and limits of the guest's ports.
    Change(ConfigValue),
}

/// The current reload.
#[derive(Debug)]
pub(super) struct Reload {
    pub(super) client: u64,
    pub(super) began_ns: u64,
    /// The answer to the client.
    pub(super) answer: ReloadReply,
    /// The guests in the files. After all steps, the manager records that these guests belong to
    /// the files.
    pub(super) named: Vec<String>,
    pub(super) progress: ReloadProgress,
}

/// Domains that restart on request of a client or a reload.
#[derive(Debug)]
pub(super) struct Restarting {
    pub(super) origin: EditOrigin,
    /// The domains' places, with their previous numbers of restarts.
    pub(super) starts: Vec<(usize, u64)>,
    pub(super) goal: RestartGoal,
}

/// The state of restarting domains that completes the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartGoal {
    /// A new process is connected.
    Up,
    /// netd has opened the devices of the changed NICs.
    Opened,
    /// The workers have exited. The next step, which also changes NICs, starts them.
    Ended,
    /// The workers run with the changed NICs.
    NicsChanged,
    /// The workers are connected to their guests, or the time limit has passed.
    Connected,
}
