//! Request to apply edited configuration files to a running machine, and the manager's answer.

use serde::{Deserialize, Serialize};

/// The maximum size of a request on the control socket in bytes, including the end of its line:
/// enough for some thousand guests.
pub const REQUEST_MAX: usize = 1 << 20;

/// One of the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// Its name in messages.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// Action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// A guest is detached.
    Detach,
    /// A guest is attached.
    Attach,
    /// Firewall rules and rate limits of a guest's interfaces are changed.
    Change,
    /// The driver domain is restarted with other NICs.
    Nics,
    /// A domain is restarted, to recreate a removed interface.
    Restart,
}

/// Reason for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepReason {
    /// The files no longer name the guest.
    Gone,
    /// The files describe the guest differently: it is detached and attached again, unless it can
    /// be changed in place.
    Changed,
    /// The files name a guest that is not attached.
    New,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadStep {
    /// The action.
    pub step: StepKind,
    /// The guest, or the driver domain.
    pub domain: String,
    /// The reason.
    pub why: StepReason,
    /// The differences, only in the first step about a changed guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
}

/// The steps that were executed, or would be in a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReply {
    /// All steps, in order; empty if no change was needed.
    pub steps: Vec<ReloadStep>,
    /// The number of steps done: all of them, or none if one failed.
    pub done: usize,
    /// Guests that were attached individually and that the files do not name. They remain attached.
    pub stays: Vec<String>,
    /// The reason for which a step failed. No later step was tried, and the steps before it were
    /// undone.
    pub failed: Option<String>,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// Steps that could not be undone, and failures of secondary steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// The answer when the driver domain applies a guest's new rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesReply {
    /// The guest.
    pub domain: String,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// A failure of a secondary step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}
