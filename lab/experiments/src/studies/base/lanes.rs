//! The lanes of a plan's columns.

use crate::lane::build::OnWire;
use crate::lane::cores::Cores;
use crate::lane::{Lane, Loads, forward, kernel_path, machine};
use crate::plan::{
    Column, Config, Direction, Gro, Lro, PathKind, Place, Plan, Topology, Wire, WireNic,
};
use crate::runner::Samples;
use anyhow::Context as _;
use figures::interrupt;
use std::collections::BTreeMap;

/// Where a column is measured: which lane, how that is switched, which way, and under which keys.
pub(super) struct Stop {
    pub(super) lane: usize,
    pub(super) lro: Option<Lro>,
    pub(super) direction: Option<Direction>,
    pub(super) config: Config,
}

/// Lanes that are up, and the columns' stops among them.
#[derive(Default)]
pub(super) struct Lanes {
    pub(super) lanes: Vec<Lane>,
    /// Machines that several columns share, by place, wire, what that is and how it is moderated.
    shared: BTreeMap<(&'static str, String, WireNic, Option<u32>, Topology), usize>,
    pub(super) stops: Vec<Stop>,
}

impl Lanes {
    fn push(&mut self, lane: Lane) -> usize {
        self.lanes.push(lane);
        self.lanes.len() - 1
    }

    fn stop(
        &mut self,
        plan: &Plan,
        column: &Column,
        place: Option<Place>,
        wire: &Wire,
        topology: Topology,
        lane: usize,
    ) {
        self.stops.push(Stop {
            lane,
            lro: column.lro.clone(),
            direction: column.direction,
            config: plan.stop(column, place, wire, topology),
        });
    }
}

/// Every column's lanes; columns that need absent programs are noted as not measurable.
pub(super) fn set_up(
    plan: &Plan,
    cores: Cores,
    loads: &Loads,
    samples: &mut Samples,
) -> anyhow::Result<Lanes> {
    let mut lanes = Lanes::default();
    for column in &plan.column {
        let wires = plan.wire.iter().filter(|wire| column.is_at(wire));
        let done = wires.map(|wire| set_up_column(plan, column, wire, cores, loads, &mut lanes));
        let done = done.collect::<anyhow::Result<()>>();
        let may_lack = matches!(column.path, PathKind::Bridge | PathKind::Veth);
        let config = Config::new(&column.name, &[]);
        samples.made(&column.name, done, may_lack, [config])?;
    }
    Ok(lanes)
}

/// Sets up a column's lanes, or finds the machine that it shares.
fn set_up_column(
    plan: &Plan,
    column: &Column,
    wire: &Wire,
    cores: Cores,
    loads: &Loads,
    lanes: &mut Lanes,
) -> anyhow::Result<()> {
    interrupt::check()?;
    let name = column.name.as_str();
    let gro = column.gro.unwrap_or(Gro::Off);
    let bridged = column.path == PathKind::Bridge;
    if column.place.is_empty() {
        let lane = kernel_path::lane(bridged, gro, cores, loads)?;
        let lane = lanes.push(lane);
        lanes.stop(plan, column, None, wire, Topology::default(), lane);
    }
    let machines = column.machines();
    let each = |&place| machines.iter().map(move |&topology| (place, topology));
    for (place, topology) in column.place.iter().flat_map(each) {
        let key = (
            place.name(),
            wire.name.clone(),
            column.nic,
            column.tick_us,
            topology,
        );
        let lane = match lanes.shared.get(&key) {
            Some(&lane) if column.lro.is_some() => lane,
            _ if column.path == PathKind::Forwarder => {
                lanes.push(forward::lane(place, cores, loads)?)
            }
            _ => {
                let near = OnWire {
                    nic: column.nic,
                    speed: wire,
                    tick_us: column.tick_us,
                };
                let lane = machine::lane(place, near, topology, cores, loads);
                let lane = lanes.push(lane.with_context(|| format!("column {name}"))?);
                if column.lro.is_some() {
                    lanes.shared.insert(key, lane);
                }
                lane
            }
        };
        lanes.stop(plan, column, Some(place), wire, topology, lane);
    }
    Ok(())
}
