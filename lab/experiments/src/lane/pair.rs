//! A load's two ends.

use crate::load::{Load, LoadRole, LoadSpec};
use crate::plan::PayloadDirection;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// The two ends of a load.
pub(super) struct Pair {
    pub(super) active: Load,
    pub(super) passive: Load,
    /// Namespace of the passive end. The kernel's counters in it cover all of its sockets.
    pub(super) at: PathBuf,
}

/// One end of a pair.
pub(super) struct Side {
    /// The load's namespace. For a load in a virtual machine, a namespace from which it is
    /// reachable.
    pub(super) netns: PathBuf,
    pub(super) in_vm: bool,
    pub(super) core: usize,
    pub(super) address: IpAddr,
}

/// Roles of the two ends of a load, and the size of a request.
pub(super) struct PairRoles {
    pub(super) active: LoadRole,
    pub(super) passive: LoadRole,
    pub(super) size: usize,
}

impl Pair {
    /// Starts both ends, the passive one first.
    pub(super) fn start(
        PairRoles {
            active,
            passive,
            size,
        }: PairRoles,
        way: PayloadDirection,
        [wire, guest]: [&Side; 2],
        port: u16,
        flows: u32,
    ) -> anyhow::Result<Self> {
        let (from, to) = match way {
            PayloadDirection::ToGuest => (wire, guest),
            PayloadDirection::FromGuest => (guest, wire),
        };
        let load = |role, side: &Side| {
            let spec = LoadSpec {
                role,
                netns: (!side.in_vm).then(|| side.netns.clone()),
                cpu: (!side.in_vm).then_some(side.core),
                address: SocketAddr::new(to.address, port),
                size,
                flows: flows as usize,
                bytes_per_s: None,
            };
            match side.in_vm {
                true => Load::start_in_vm(&spec, &side.netns, side.address),
                false => Load::start(&spec),
            }
        };
        let passive = load(passive, to)?;
        Ok(Self {
            active: load(active, from)?,
            passive,
            at: match to.in_vm {
                true => PathBuf::from("vm"),
                false => to.netns.clone(),
            },
        })
    }
}

/// Returns the longer of two latencies.
pub(super) fn later(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.into_iter().chain(b).reduce(f64::max)
}
