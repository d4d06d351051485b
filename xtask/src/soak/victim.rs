//! Processes that may be killed.

use anyhow::{Context as _, Result};

/// The process to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    Driver,
    Guest,
    Manager,
    Netd,
    /// Driver domain, shim and monitor of a virtual machine, in turn.
    Vm,
}

impl Victim {
    const ALL: [Self; 5] = [
        Self::Driver,
        Self::Guest,
        Self::Manager,
        Self::Netd,
        Self::Vm,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Guest => "guest",
            Self::Manager => "manager",
            Self::Netd => "netd",
            Self::Vm => "vm",
        }
    }

    /// Parses an option's value.
    pub(super) fn named(name: &str) -> Result<Self> {
        let named = Self::ALL.into_iter().find(|victim| victim.name() == name);
        named.with_context(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            format!("--of {name}: choose one of {all}")
        })
    }
}
