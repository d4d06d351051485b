//! Input of [`super::step()`]: the state of a domain and of the domains on which it depends.

use abi::DomId;
use abi::core::Stage;
use std::collections::BTreeMap;

/// The state of a domain in the core, and the progress of other domains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DomainView<'a> {
    /// The domain in the core, if the core has built one.
    pub(crate) id: Option<DomId>,
    pub(crate) stage: Option<Stage>,
    /// Whether all connections are up, except those whose other end is dead.
    pub(crate) is_connected: bool,
    /// Number of devices in the domain's description.
    pub(crate) devices: usize,
    /// The stage that all domains of a starting machine have reached. In a running machine, a start
    /// does not depend on other domains.
    pub(crate) ready: StartStage,
    /// The workers of the driver domain, by place.
    pub(crate) workers: &'a BTreeMap<usize, WorkerView>,
}

/// The stage of a domain's first start. The domains of a starting machine pass each stage together:
/// the manager builds all of them, connects them, gives them their devices, and then starts their
/// processes. This order is necessary because a device may use other domains' memory, and because a
/// worker expects the connections in its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StartStage {
    Nothing,
    Built,
    Connected,
    Given,
}

/// The state of a worker of the driver domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerView {
    Running,
    /// The worker is about to restart.
    Restarting,
    /// The worker is not restarted.
    Dead,
}
