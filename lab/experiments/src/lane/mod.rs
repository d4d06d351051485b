//! Lanes: paths between a wire and a guest, with ordinary sockets at both ends.
//!
//! Every column of a plan is a lane: through the machine itself, through the forwarder in one
//! process, or through the kernel's veth and bridge. All lanes exist at the same time, and only one
//! has traffic. So rounds of different columns alternate without repeated set-up.
//!
//! | module | contents |
//! |---|---|
//! | [`ends`], [`cores`] | the namespaces at both ends; the cores of a run |
//! | [`path`], [`reading`] | the path between the ends, and its counters |
//! | `pair`, [`rivals`] | a load's two ends; guests that compete with the measured ones |
//! | [`window`] | the measurement of one load for a time |
//! | [`ledgers`] | the domains' hop ledgers in it |
//! | [`events`] | its hardware events, on machines with a PMU |
//! | [`machine`], [`running`], [`build`] | the path through Grantway: set-up, control,
//! configuration |
//! | [`forward`], [`kernel_path`] | the baselines |
//! | [`vm`] | paths to a virtual machine |
//! | [`frame_run`], [`one_process`] | raw frames between guests, without a wire |
//! | [`file_run`] | a file sent between guests without copying |

pub mod build;
pub mod cores;
pub mod ends;
pub mod events;
pub mod file_run;
pub mod forward;
pub mod frame_run;
pub mod kernel_path;
pub mod ledgers;
pub mod machine;
pub mod one_process;
mod pair;
pub mod path;
pub mod reading;
pub mod rivals;
pub mod running;
pub mod vm;
pub mod window;

use crate::load::{Load, LoadRole};
use crate::ns::NamedNamespace;
use crate::plan::{LroColumn, LroRules, PayloadDirection, WireFaults, Workload};
use anyhow::Context as _;
use cores::Cores;
use ends::LaneEnds;
use figures::measure::{CpuPart, kernel_threads};
use pair::{Pair, PairRoles, Side};
use path::Path;
use rivals::Rival;
use running::{RIVALS, Running};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// A lane: two namespaces, the path between them, and loads in both directions.
pub struct Lane {
    /// Loads, one pair for each guest.
    pairs: BTreeMap<(Workload, PayloadDirection), Vec<Pair>>,
    /// Loads of guests that are not measured, by direction.
    rivals: BTreeMap<PayloadDirection, Vec<Rival>>,
    path: Box<dyn Path>,
    /// Kernel threads of the wire's core (its `ksoftirqd`, and those that aggregate at the wire's
    /// end), and `ksoftirqd` threads of the other cores. Their time belongs to the lane in its
    /// window, because the other lanes have no traffic.
    softirqs: [(CpuPart, Vec<i32>); 2],
    /// Remark to print beside the lane's figures.
    remark: Option<String>,
    // This is the last field, so that loads and path are dropped first.
    ends: LaneEnds,
}

/// Loads of a lane: every workload in every direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Loads {
    /// Workloads.
    pub workloads: Vec<Workload>,
    /// Directions.
    pub directions: Vec<PayloadDirection>,
    /// Connections of a stream's sender.
    pub flows: u32,
    /// True if each guest has loads over only one wire, which no other guest uses.
    pub own_wires: bool,
    /// Number of guests, the last ones, that have a load but are not measured.
    pub rivals: u32,
    /// True if these have different loads, not a stream each.
    pub mixed: bool,
    /// True if the sender sends a file without copying it.
    pub sendfile: bool,
    /// True if each message is a separate packet.
    pub push: bool,
    /// Faults of the wire; `None`: none.
    pub faults: Option<WireFaults>,
    /// True if guests acknowledge every segment immediately.
    pub quick_ack: bool,
}

impl Loads {
    /// Returns one TCP stream in each of these directions.
    #[must_use]
    pub fn of_stream(directions: &[PayloadDirection]) -> Self {
        Self {
            workloads: vec![Workload::Stream],
            directions: directions.to_vec(),
            ..Self::default()
        }
    }
}

impl Default for Loads {
    fn default() -> Self {
        Self {
            workloads: Workload::BOTH.to_vec(),
            directions: PayloadDirection::BOTH.to_vec(),
            flows: 1,
            own_wires: false,
            rivals: 0,
            mixed: false,
            sendfile: false,
            push: false,
            faults: None,
            quick_ack: false,
        }
    }
}

/// Ports of the passive loads of a lane.
pub(crate) const LOAD_PORTS: RangeInclusive<u16> = 5201..=5999;

/// Kernel work of the wire's far end: threads on the wire's core.
const WIRE_KERNEL: CpuPart = "wire_kernel";
/// Kernel work of the wire's near end, part of the machine under test.
const NIC_KERNEL: CpuPart = "nic_kernel";

/// Returns the `ksoftirqd` threads by part. On a single core they cannot be attributed, and are
/// charged to the machine.
fn softirqs(cores: Cores) -> [(CpuPart, Vec<i32>); 2] {
    let far = match cores.wire == cores.guest {
        true => Vec::new(),
        // The newline ends the name, so that core 1 does not match core 10.
        false => kernel_threads(&[&format!("ksoftirqd/{}\n", cores.wire)]),
    };
    let mut near = kernel_threads(&["ksoftirqd/"]);
    near.retain(|thread| !far.contains(thread));
    [(WIRE_KERNEL, far), (NIC_KERNEL, near)]
}

/// Returns the roles of the ends of a workload.
fn roles(work: Workload, loads: &Loads) -> PairRoles {
    let (active, passive, size) = match work {
        Workload::Stream if loads.sendfile => (LoadRole::File, LoadRole::Sink, 0),
        Workload::Stream if loads.push => (LoadRole::Pushed, LoadRole::Sink, 0),
        Workload::Stream => (LoadRole::Source, LoadRole::Sink, 0),
        Workload::Requests(size) => (LoadRole::Client, LoadRole::Echo, size),
    };
    PairRoles {
        active,
        passive,
        size,
    }
}

/// Returns the wire's and the guest's side of each pair of loads: every guest with every wire, or
/// with `own_wires` the first guest with the first wire, and so on.
fn connected<'a>(guests: &'a [Side], wires: &'a [Side], own_wires: bool) -> Vec<[&'a Side; 2]> {
    match own_wires {
        true => wires.iter().zip(guests).map(<[_; 2]>::from).collect(),
        false => guests
            .iter()
            .flat_map(|guest| wires.iter().map(move |wire| [wire, guest]))
            .collect(),
    }
}

impl Lane {
    /// Starts loads at both ends of an existing path.
    ///
    /// # Errors
    /// Returns an error if a load cannot start or cannot connect.
    pub fn new(
        mut ends: LaneEnds,
        path: Box<dyn Path>,
        cores: Cores,
        loads: &Loads,
    ) -> anyhow::Result<Self> {
        if loads.quick_ack {
            ends.quick_ack()?;
        }
        if let Some(faults) = loads.faults {
            ends.add_faults(faults)?;
        }
        let mut lane = Self {
            pairs: BTreeMap::new(),
            rivals: BTreeMap::new(),
            path,
            softirqs: softirqs(cores),
            remark: None,
            ends,
        };
        let side = |core| {
            move |(end, address): (&NamedNamespace, IpAddr)| Side {
                netns: end.path(),
                in_vm: false,
                core,
                address,
            }
        };
        let wires: Vec<Side> = lane.ends.wires().map(side(cores.wire)).collect();
        let mut guests: Vec<Side> = lane.ends.guests().map(side(cores.guest)).collect();
        if lane.ends.guest_is_vm {
            for guest in &mut guests {
                guest.in_vm = true;
                guest.netns = lane.ends.wire.path();
            }
        }
        let rivals = guests.split_off(guests.len().saturating_sub(loads.rivals as usize));
        let mut ports = LOAD_PORTS;
        for &work in &loads.workloads {
            for &way in &loads.directions {
                for ends in connected(&guests, &wires, loads.own_wires) {
                    let port = ports.next().context("no port")?;
                    let roles = roles(work, loads);
                    let pair = Pair::start(roles, way, ends, port, loads.flows)?;
                    lane.pairs.entry((work, way)).or_default().push(pair);
                }
            }
        }
        for &way in &loads.directions {
            for (number, (rival, wire)) in rivals.iter().zip(wires.iter().cycle()).enumerate() {
                let port = ports.next().context("no port")?;
                let rival = Rival::start((number, loads.mixed), way, [wire, rival], port)?;
                lane.rivals.entry(way).or_default().extend(rival);
            }
        }
        Ok(lane)
    }

    /// Returns the namespaces.
    #[must_use]
    pub fn ends(&self) -> &LaneEnds {
        &self.ends
    }

    /// Adds kernel threads of the wire's far end.
    fn with_wire_threads(mut self, threads: Vec<i32>) -> Self {
        let [(_, far), _] = &mut self.softirqs;
        far.extend(threads);
        self
    }

    /// Sets the remark to print beside the lane's figures.
    #[must_use]
    pub fn with_remark(self, remark: Option<String>) -> Self {
        Self { remark, ..self }
    }

    /// Returns the remark to print beside the lane's figures.
    #[must_use]
    pub fn remark(&self) -> Option<&str> {
        self.remark.as_deref()
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &dyn Path {
        self.path.as_ref()
    }

    /// Returns the machine.
    ///
    /// # Errors
    /// Returns an error if the path is not a machine.
    pub fn machine(&self) -> anyhow::Result<&Running> {
        self.path.machine().context("no machine")
    }

    /// Changes the machine's LRO settings.
    ///
    /// # Errors
    /// Returns an error if the path is not a machine, or the machine rejects the change.
    pub fn set_lro(&mut self, lro: &LroColumn, rules: LroRules) -> anyhow::Result<()> {
        let machine = self.path.machine().context("no machine to switch")?;
        machine.set_lro(lro, rules)
    }

    /// Sets the maximum number of bytes per call of a stream's receiver.
    ///
    /// # Errors
    /// Returns an error if the lane has no stream in this direction, or the receiver has exited.
    pub fn set_receive_size(
        &mut self,
        direction: PayloadDirection,
        bytes: usize,
    ) -> anyhow::Result<()> {
        let pairs = self.pairs.get_mut(&(Workload::Stream, direction));
        let mut pairs = pairs.context("no such stream")?.iter_mut();
        pairs.try_for_each(|pair| pair.passive.set_receive_size(bytes))
    }

    /// Sets the number of bytes per call of the streams' senders.
    ///
    /// # Errors
    /// Returns an error if a sender has exited.
    pub fn set_send_size(&mut self, bytes: usize) -> anyhow::Result<()> {
        for ((workload, _), pairs) in &mut self.pairs {
            if *workload == Workload::Stream {
                pairs
                    .iter_mut()
                    .try_for_each(|pair| pair.active.set_send_size(bytes))?;
            }
        }
        Ok(())
    }

    /// Starts or stops the streams of a direction.
    ///
    /// # Errors
    /// Returns an error if a sender has exited.
    pub fn stream(&mut self, direction: PayloadDirection, go: bool) -> anyhow::Result<()> {
        let pairs = self.pairs.get_mut(&(Workload::Stream, direction));
        let mut pairs = pairs.context("no such stream")?.iter_mut();
        pairs.try_for_each(|Pair { active, .. }| if go { active.go() } else { active.stop() })
    }

    /// Returns the number of bytes that the first guest's stream delivered since the last call.
    ///
    /// # Errors
    /// Returns an error if the lane has no such stream, or its receiver has exited.
    pub fn received_bytes(&mut self, direction: PayloadDirection) -> anyhow::Result<u64> {
        let pairs = self.pairs.get_mut(&(Workload::Stream, direction));
        let first = pairs.and_then(|pairs| pairs.first_mut());
        let mark = first.context("no such stream")?.passive.mark()?;
        Ok(mark.bytes)
    }

    /// Returns the processes of the path, the kernel's threads and `receivers` by part, without the
    /// wire's far end.
    #[must_use]
    pub fn parts_of(&self, receivers: &[i32]) -> Vec<(CpuPart, Vec<i32>)> {
        let mut parts = self.inner_parts();
        parts.retain(|(part, _)| *part != WIRE_KERNEL);
        parts.push(("receiver", receivers.to_vec()));
        parts
    }

    fn inner_parts(&self) -> Vec<(CpuPart, Vec<i32>)> {
        let mut parts = self.path.parts();
        parts.extend(self.softirqs.iter().cloned());
        parts
    }

    fn parts(&self, pairs: &[Pair]) -> Vec<(CpuPart, Vec<i32>)> {
        let mut parts = self.inner_parts();
        let pids = |end: fn(&Pair) -> &Load| pairs.iter().map(|pair| end(pair).pid()).collect();
        parts.push(("sender", pids(|pair| &pair.active)));
        parts.push(("receiver", pids(|pair| &pair.passive)));
        let rivals = self.rivals.values().flatten();
        let rivals = rivals.flat_map(|Rival { pair, .. }| [pair.active.pid(), pair.passive.pid()]);
        parts.push((RIVALS, rivals.collect()));
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn guests_use_all_wires_or_separate_ones() {
        let side = |last: u8| Side {
            netns: PathBuf::new(),
            in_vm: false,
            core: 0,
            address: IpAddr::from([10, 0, 0, last]),
        };
        let (guests, wires) = ([side(1), side(2)], [side(3), side(4)]);
        let pairs = |own_wires| {
            let pairs = connected(&guests, &wires, own_wires).into_iter();
            let last = |side: &Side| match side.address {
                IpAddr::V4(address) => address.octets()[3],
                IpAddr::V6(_) => 0,
            };
            pairs.map(|sides| sides.map(last)).collect::<Vec<_>>()
        };
        assert_eq!(pairs(true), [[3, 1], [4, 2]]);
        assert_eq!(pairs(false), [[3, 1], [4, 1], [3, 2], [4, 2]]);
    }
}
