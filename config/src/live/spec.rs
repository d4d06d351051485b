//! The guests and NICs of a running machine that differ from its files.

use super::state::AttachedGuest;
use crate::ConfigFile;
use abi::machine::{ConfigValue, HotplugState};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The description of a running machine: its files, and all changes since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveSpec {
    /// The machine at its start.
    pub start: HotplugState,
    /// Guests that were attached since the start, by name.
    pub attached: BTreeMap<String, AttachedGuest>,
    /// Guests of the files that were detached.
    pub detached: BTreeSet<String>,
    /// Guests of the files whose description has changed since the start.
    pub changed: BTreeMap<String, ConfigValue>,
    /// All NICs, if they differ from the files: `[[nic]]` sections with their assigned MACs.
    pub nics: Option<Vec<ConfigValue>>,
}

impl From<HotplugState> for LiveSpec {
    fn from(start: HotplugState) -> Self {
        Self {
            start,
            ..Self::default()
        }
    }
}

impl LiveSpec {
    /// Returns the section of a guest that was attached or changed since the start.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&ConfigValue> {
        let attached = self.attached.get(name).map(|attached| &attached.guest);
        attached.or_else(|| self.changed.get(name))
    }

    /// Returns whether a client attached the guest, and no file names it.
    #[must_use]
    pub fn is_attached_by_hand(&self, name: &str) -> bool {
        let attached = self.attached.get(name);
        attached.is_some_and(|attached| attached.origin.user.is_some())
    }

    /// Returns the files from which the machine was built.
    pub(super) fn files(&self) -> Vec<ConfigFile> {
        let file = |text: &String| ConfigFile {
            name: String::new(),
            text: text.clone(),
        };
        self.start.files.iter().map(file).collect()
    }
}
