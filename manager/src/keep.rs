//! What a manager wants the next one to know: kept by the core, which does not look into it.

use crate::shape::Shape;
use abi::machine::Restarts;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// It.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keep<'a> {
    /// When the machine was complete, by the monotonic clock.
    pub(crate) complete_ns: u64,
    /// What the system could not provide, in words.
    pub(crate) missing: BTreeSet<String>,
    /// What is known of domains that are started again, by their place in the machine.
    pub(crate) restarts: BTreeMap<usize, Restarts>,
    /// The machine, if it is not what it began as.
    #[serde(default)]
    pub(crate) shape: Option<Cow<'a, Shape>>,
}
