//! Lanes of a plan's columns.

use crate::lane::build::OnWire;
use crate::lane::cores::Cores;
use crate::lane::kernel_path::Offloaded;
use crate::lane::{Lane, Loads, forward, kernel_path, machine, vm};
use crate::plan::{
    Column, ColumnConfig, Gro, LroColumn, LroRules, PathKind, PayloadDirection, Place, Plan,
    PollMode, Topology, WireFaults, WireNic, WireOffload, WireSpeed,
};
use crate::runner::Samples;
use anyhow::Context as _;
use figures::interrupt;
use std::collections::BTreeMap;

/// A configuration with its lane, LRO settings and direction.
pub(super) struct LanePoint {
    pub(super) lane: usize,
    pub(super) lro: Option<(LroColumn, LroRules)>,
    pub(super) direction: Option<PayloadDirection>,
    /// True if the lane may have a web server and streams by receive buffer. This requires one
    /// wire, one guest, and a column without `only_streams`.
    pub(super) may_serve: bool,
    pub(super) config: ColumnConfig,
}

impl LanePoint {
    /// Returns whether web requests, and streams by receive buffer, are measured for this
    /// configuration.
    pub(super) fn serves(&self) -> bool {
        self.direction != Some(PayloadDirection::FromGuest) && self.may_serve
    }
}

/// Identifies a machine. Columns that differ only in LRO share one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct MachineKey {
    path: PathKind,
    place: Place,
    wire: String,
    nic: WireNic,
    moderation: PollMode,
    apart: Option<Gro>,
    offload: WireOffload,
    faults: Option<WireFaults>,
    quick_ack: bool,
    topology: Topology,
}

/// Existing lanes, and the configurations that use them.
#[derive(Default)]
pub(super) struct Lanes {
    pub(super) lanes: Vec<Lane>,
    /// Machines that several columns share.
    shared: BTreeMap<MachineKey, usize>,
    pub(super) points: Vec<LanePoint>,
}

impl Lanes {
    fn push(&mut self, lane: Lane) -> usize {
        self.lanes.push(lane);
        self.lanes.len() - 1
    }

    fn point(&mut self, column: &Column, config: ColumnConfig, lane: usize, topology: Topology) {
        self.points.push(LanePoint {
            lane,
            lro: column.lro.clone().map(|lro| (lro, column.rules)),
            direction: column.direction,
            may_serve: topology.is_alone() && !column.only_streams,
            config,
        });
    }
}

/// Sets up the lanes of all columns. Records columns whose programs are missing as not measurable.
pub(super) fn set_up(
    plan: &Plan,
    cores: Cores,
    loads: &Loads,
    samples: &mut Samples,
) -> anyhow::Result<Lanes> {
    let mut lanes = Lanes::default();
    for column in &plan.column {
        let wires = plan.wires(column).iter();
        let done = wires.map(|wire| set_up_column(plan, column, wire, cores, loads, &mut lanes));
        let done = done.collect::<anyhow::Result<()>>();
        let may_lack =
            column.path.has_vm() || matches!(column.path, PathKind::Bridge | PathKind::Veth);
        let config = ColumnConfig::new(&column.name, &[]);
        samples.setup_result(&column.name, done, may_lack, [config])?;
    }
    Ok(lanes)
}

/// Sets up a column's lanes, or reuses a machine that it shares.
fn set_up_column(
    plan: &Plan,
    column: &Column,
    wire: &WireSpeed,
    cores: Cores,
    loads: &Loads,
    lanes: &mut Lanes,
) -> anyhow::Result<()> {
    interrupt::check()?;
    let loads = &Loads {
        faults: column.faults,
        quick_ack: column.quick_ack,
        ..loads.clone()
    };
    let name = column.name.as_str();
    let gro = column.gro.unwrap_or(Gro::Off);
    for topology in column.machines() {
        if column.place.is_empty() {
            let path = match column.path {
                PathKind::Bridge => {
                    let segments = column.offload == WireOffload::Segments;
                    kernel_path::bridge_lane(Offloaded { gro, segments }, cores, loads)
                }
                path if path.has_vm() => vm::lane(path, cores, loads),
                _ => kernel_path::veth_lane(topology.wires, gro, cores, loads),
            };
            let lane = lanes.push(path?);
            let config = plan.point(column, None, wire, PollMode::Event, topology);
            lanes.point(column, config, lane, topology);
        }
    }
    for (place, moderation, topology) in column.variants() {
        let kind = MachineKey {
            path: column.path,
            place,
            wire: wire.name.clone(),
            nic: column.nic,
            moderation,
            apart: (column.apart || plan.as_thesis).then(|| column.gro_at_wire()),
            offload: column.offload,
            faults: column.faults,
            quick_ack: column.quick_ack,
            topology,
        };
        let lane = match lanes.shared.get(&kind) {
            Some(&lane) if column.lro.is_some() => lane,
            _ if column.path == PathKind::Forwarder => {
                lanes.push(forward::lane(place, cores, loads)?)
            }
            _ => {
                let near = OnWire {
                    nic: column.nic,
                    speed: wire,
                    moderation,
                    apart: kind.apart,
                    offload: kind.offload,
                };
                let lane = match column.path {
                    PathKind::Local => machine::local_lane(place, near, topology, cores, loads),
                    _ => machine::lane(place, near, topology, cores, loads),
                };
                lanes.push(lane.with_context(|| format!("column {name}"))?)
            }
        };
        if column.lro.is_some() {
            lanes.shared.insert(kind, lane);
        }
        let config = plan.point(column, Some(place), wire, moderation, topology);
        lanes.point(column, config, lane, topology);
    }
    Ok(())
}
