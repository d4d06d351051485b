//! Who may be killed.

use anyhow::{Context as _, Result};

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    Driver,
    Guest,
    Manager,
    Netd,
}

impl Victim {
    const ALL: [Self; 4] = [Self::Driver, Self::Guest, Self::Manager, Self::Netd];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Guest => "guest",
            Self::Manager => "manager",
            Self::Netd => "netd",
        }
    }

    /// From an option's value.
    pub(super) fn named(name: &str) -> Result<Self> {
        let named = Self::ALL.into_iter().find(|victim| victim.name() == name);
        named.with_context(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            format!("--of {name}: one of {all}")
        })
    }
}
