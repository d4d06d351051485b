//! A machine that runs is made what configuration files say: what the manager is asked, and what it
//! answers.

use serde::{Deserialize, Serialize};

/// Bytes of a request on the control socket, with the end of its line: some thousand guests.
pub const REQUEST_MAX: usize = 1 << 20;

/// One of the files: what it is called in messages, and its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// Its name.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// A guest is detached.
    Detach,
    /// A guest is attached.
    Attach,
    /// Firewall rules and rate limits of a guest's interfaces are others.
    Change,
    /// The driver domain is started again with other NICs.
    Nics,
    /// A domain is started again, so that an interface is made again that was removed.
    Restart,
}

/// Why it does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepReason {
    /// The files do not name the guest any more.
    Gone,
    /// They describe it otherwise than before: it is detached, and attached again, unless that is
    /// only about what can change while it is there.
    Changed,
    /// They name it, and it is not there.
    New,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadStep {
    /// What it does.
    pub step: StepKind,
    /// The guest, or the driver domain.
    pub domain: String,
    /// Why.
    pub why: StepReason,
    /// What is described otherwise, in words; of the first step about such a guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
}

/// What was done, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// All steps, in their order; none: there was nothing to change.
    pub steps: Vec<ReloadStep>,
    /// How many of them were done, the first ones.
    pub done: usize,
    /// Guests that were attached one by one and that the files do not name: they stay.
    pub stays: Vec<String>,
    /// Why the next step was not done, and none after it.
    pub failed: Option<String>,
    /// Nanoseconds that it took.
    pub took_ns: u64,
    /// What went wrong beside it, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}
