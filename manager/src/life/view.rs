//! The state of a domain and of others, as [`super::step()`] sees it.

use abi::DomId;
use abi::core::Stage;
use std::collections::BTreeMap;

/// The state of a domain in the core, and how far others are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DomainView<'a> {
    /// The domain in the core, if there is one.
    pub(crate) id: Option<DomId>,
    pub(crate) stage: Option<Stage>,
    /// Whether all connections are up, except those whose other end is dead.
    pub(crate) is_connected: bool,
    /// Devices that the domain is given.
    pub(crate) devices: usize,
    /// The stage that all domains that start together have reached. In a running machine, a start
    /// does not depend on other domains.
    pub(crate) ready: StartStage,
    /// The workers of the driver domain, by place.
    pub(crate) workers: &'a BTreeMap<usize, WorkerView>,
}

/// The stage of a domain's first start. Domains that start together pass each stage together: all
/// are built, then connected, then get devices, and then processes, because devices may lie over
/// other domains' memory, and a worker expects the connections of its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StartStage {
    Nothing,
    Built,
    Connected,
    Given,
}

/// A worker of the driver domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerView {
    Running,
    /// It is about to restart.
    Away,
    /// It is not restarted.
    Dead,
}
