//! Edits of the machine's specification: by a client, by a reload, or by the return of a guest.

use abi::machine::ConfigValue;
use abi::reload::StepKind;
use config::live::NicsStep;

/// One edit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Edit {
    /// Attaches the guest of a section for a user, or for a file (`None`).
    Attach(ConfigValue, Option<u32>),
    /// Detaches the guest with this name.
    Detach(String),
    /// Changes the rules and rate limits of a guest to those of its section.
    Change(ConfigValue),
    /// Replaces all NICs.
    Nics(NicsStep),
    /// Restarts the domain with this name, for a reason.
    Restart(String, &'static str),
}

impl Edit {
    /// Returns the kind of the edit as a step of a reload.
    pub(crate) fn kind(&self) -> StepKind {
        match self {
            Self::Attach(..) => StepKind::Attach,
            Self::Detach(_) => StepKind::Detach,
            Self::Change(_) => StepKind::Change,
            Self::Nics(_) => StepKind::Nics,
            Self::Restart(..) => StepKind::Restart,
        }
    }
}
