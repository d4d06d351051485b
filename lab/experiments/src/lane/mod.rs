//! Lanes: a path between a wire and a guest, with ordinary sockets at both ends.
//!
//! Every column of a plan is a lane: the machine itself, the one-process forwarder, the kernel's
//! veth and bridge. All are there at once, asleep; a run wakes one at a time, so that rounds
//! of different columns can follow each other without being set up anew.
//!
//! | module | what it is |
//! |---|---|
//! | [`ends`], [`cores`] | the namespaces at both ends; who runs on which core |
//! | [`path`], [`reading`] | what lies between, and its counters |
//! | [`window`] | a time in which one load runs and is measured |
//! | [`events`] | hardware events in it, where there is a PMU |
//! | [`machine`], [`running`], [`build`] | the path through Grantway: set up, running, configured |
//! | [`forward`], [`kernel_path`] | the baselines |
//! | [`frame_run`], [`one_process`] | raw frames between guests, without a wire |
//! | [`file_run`] | a file between guests, sent from where it lies |

pub mod build;
pub mod cores;
pub mod ends;
pub mod events;
pub mod file_run;
pub mod forward;
pub mod frame_run;
pub mod kernel_path;
pub mod machine;
pub mod one_process;
pub mod path;
pub mod reading;
pub mod running;
pub mod window;

use crate::load::{Load, LoadSpec, Role};
use crate::ns::Namespace;
use crate::plan::{Direction, Faults, Lro, LroRules, Workload};
use anyhow::Context as _;
use cores::Cores;
use ends::Ends;
use figures::measure::{Part, kernel_threads};
use path::Path;
use running::{RIVALS, Running};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// A lane: two namespaces, what lies between, and loads in both directions.
pub struct Lane {
    /// One pair for every guest.
    pairs: BTreeMap<(Workload, Direction), Vec<Pair>>,
    /// Streams of guests that are not measured, by their direction.
    rivals: BTreeMap<Direction, Vec<Pair>>,
    path: Box<dyn Path>,
    /// Kernel threads that do what softirqs put off, on the wire's core and on others. They are
    /// charged to the lane, because the other lanes sleep.
    softirqs: [(Part, Vec<i32>); 2],
    /// What is to be said beside its figures.
    remark: Option<String>,
    // Last, so that loads and path end first.
    ends: Ends,
}

/// What is to run over a lane: every workload in every direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Loads {
    /// Streams, requests.
    pub workloads: Vec<Workload>,
    /// Which way.
    pub directions: Vec<Direction>,
    /// Connections of a stream's sender.
    pub flows: u32,
    /// The last so many guests are not measured: each has a stream while others are.
    pub beside: u32,
    /// Whether it sends a file, without a copy of its own.
    pub sendfile: bool,
    /// Whether each of its messages is a packet of its own.
    pub push: bool,
    /// What becomes of packets at the wire's end; none: all come, in order.
    pub faults: Option<Faults>,
    /// Whether guests acknowledge at once what they receive.
    pub quick_ack: bool,
}

impl Loads {
    /// One TCP stream in each of these directions.
    #[must_use]
    pub fn of_stream(directions: &[Direction]) -> Self {
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
            directions: Direction::BOTH.to_vec(),
            flows: 1,
            beside: 0,
            sendfile: false,
            push: false,
            faults: None,
            quick_ack: false,
        }
    }
}

/// Kernel work of the wire's far end: threads on the wire's core.
const WIRE_KERNEL: Part = "wire_kernel";
/// Kernel work of the wire's near end, the machine under test.
const NIC_KERNEL: Part = "nic_kernel";

/// The kernel threads that do what softirqs put off. On one core nobody can tell whose they are:
/// they are the machine's.
fn softirqs(cores: Cores) -> [(Part, Vec<i32>); 2] {
    let far = match cores.wire == cores.guest {
        true => Vec::new(),
        // The name of core 1's is no beginning of core 10's: it is all of the name.
        false => kernel_threads(&[&format!("ksoftirqd/{}\n", cores.wire)]),
    };
    let mut near = kernel_threads(&["ksoftirqd/"]);
    near.retain(|thread| !far.contains(thread));
    [(WIRE_KERNEL, far), (NIC_KERNEL, near)]
}

/// Who asks or sends, and who answers or receives.
struct Pair {
    active: Load,
    passive: Load,
    /// Where the passive one is: counters of a kernel are those of all that are there.
    at: PathBuf,
}

/// One end of a pair.
struct Side {
    netns: PathBuf,
    core: usize,
    address: IpAddr,
}

impl Pair {
    /// Starts both, the passive one first.
    fn start(
        work: Workload,
        way: Direction,
        [wire, guest]: [&Side; 2],
        port: u16,
        loads: &Loads,
    ) -> anyhow::Result<Self> {
        let (from, to) = match way {
            Direction::ToGuest => (wire, guest),
            Direction::FromGuest => (guest, wire),
        };
        let (active, passive, size) = match work {
            Workload::Stream if loads.sendfile => (Role::File, Role::Sink, 0),
            Workload::Stream if loads.push => (Role::Pushed, Role::Sink, 0),
            Workload::Stream => (Role::Source, Role::Sink, 0),
            Workload::Requests(size) => (Role::Client, Role::Echo, size),
        };
        let load = |role, side: &Side| {
            Load::start(&LoadSpec {
                role,
                netns: Some(side.netns.clone()),
                cpu: Some(side.core),
                address: SocketAddr::new(to.address, port),
                size,
                flows: loads.flows as usize,
            })
        };
        let passive = load(passive, to)?;
        Ok(Self {
            active: load(active, from)?,
            passive,
            at: to.netns.clone(),
        })
    }
}

impl Lane {
    /// Puts loads at both ends of a path that is up.
    ///
    /// # Errors
    /// If a load cannot start or does not reach the other end.
    pub fn new(
        mut ends: Ends,
        path: Box<dyn Path>,
        cores: Cores,
        loads: &Loads,
    ) -> anyhow::Result<Self> {
        if loads.quick_ack {
            ends.quick_ack()?;
        }
        if let Some(faults) = loads.faults {
            ends.spoil(faults)?;
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
            move |(end, address): (&Namespace, IpAddr)| Side {
                netns: end.path(),
                core,
                address,
            }
        };
        let wires: Vec<Side> = lane.ends.wires().map(side(cores.wire)).collect();
        let mut guests: Vec<Side> = lane.ends.guests().map(side(cores.guest)).collect();
        let rivals = guests.split_off(guests.len().saturating_sub(loads.beside as usize));
        let mut ports = 5201u16..;
        for &work in &loads.workloads {
            for &way in &loads.directions {
                for (guest, wire) in guests
                    .iter()
                    .flat_map(|g| wires.iter().map(move |w| (g, w)))
                {
                    let port = ports.next().context("no port")?;
                    let pair = Pair::start(work, way, [wire, guest], port, loads)?;
                    lane.pairs.entry((work, way)).or_default().push(pair);
                }
            }
        }
        for &way in &loads.directions {
            for (rival, wire) in rivals.iter().zip(wires.iter().cycle()) {
                let port = ports.next().context("no port")?;
                let stream = Workload::Stream;
                let pair = Pair::start(stream, way, [wire, rival], port, &Loads::default())?;
                lane.rivals.entry(way).or_default().push(pair);
            }
        }
        Ok(lane)
    }

    /// Its namespaces.
    #[must_use]
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// The same with something to be said beside its figures.
    #[must_use]
    pub fn remarked(self, remark: Option<String>) -> Self {
        Self { remark, ..self }
    }

    /// What is to be said beside its figures.
    #[must_use]
    pub fn remark(&self) -> Option<&str> {
        self.remark.as_deref()
    }

    /// What lies between.
    #[must_use]
    pub fn path(&self) -> &dyn Path {
        self.path.as_ref()
    }

    /// The machine between.
    ///
    /// # Errors
    /// If something else is there.
    pub fn machine(&self) -> anyhow::Result<&Running> {
        self.path.machine().context("no machine")
    }

    /// Switches the machine between to another way of aggregating.
    ///
    /// # Errors
    /// If there is none, or it refuses.
    pub fn switch(&mut self, lro: &Lro, rules: LroRules) -> anyhow::Result<()> {
        let machine = self.path.machine().context("no machine to switch")?;
        machine.switch(lro, rules)
    }

    /// From now on the receiver of a stream takes at most so many bytes with one call.
    ///
    /// # Errors
    /// If there is no stream in this direction, or the receiver has gone.
    pub fn receive_by(&mut self, direction: Direction, bytes: usize) -> anyhow::Result<()> {
        let pairs = self.pairs.get_mut(&(Workload::Stream, direction));
        let mut pairs = pairs.context("no such stream")?.iter_mut();
        pairs.try_for_each(|pair| pair.passive.take(bytes))
    }

    /// From now on the senders of streams hand over so many bytes with one call.
    ///
    /// # Errors
    /// If a sender has gone.
    pub fn send_by(&mut self, bytes: usize) -> anyhow::Result<()> {
        for ((workload, _), pairs) in &mut self.pairs {
            if *workload == Workload::Stream {
                pairs
                    .iter_mut()
                    .try_for_each(|pair| pair.active.give(bytes))?;
            }
        }
        Ok(())
    }

    /// Starts the streams of a direction, or stops them.
    ///
    /// # Errors
    /// If a sender has gone.
    pub fn stream(&mut self, direction: Direction, go: bool) -> anyhow::Result<()> {
        let pairs = self.pairs.get_mut(&(Workload::Stream, direction));
        let mut pairs = pairs.context("no such stream")?.iter_mut();
        pairs.try_for_each(|Pair { active, .. }| if go { active.go() } else { active.stop() })
    }

    /// Bytes that the first guest's stream has brought since this was last asked.
    ///
    /// # Errors
    /// If there is no such stream, or its receiver has gone.
    pub fn arrived(&mut self, direction: Direction) -> anyhow::Result<u64> {
        let pairs = self.pairs.get_mut(&(Workload::Stream, direction));
        let first = pairs.and_then(|pairs| pairs.first_mut());
        let mark = first.context("no such stream")?.passive.mark()?;
        Ok(mark.bytes)
    }

    /// Processes of what lies between and the kernel's threads; these, which receive; nothing of
    /// what is at the wire's far end.
    #[must_use]
    pub fn parts_of(&self, receivers: &[i32]) -> Vec<(Part, Vec<i32>)> {
        let mut parts = self.inner_parts();
        parts.retain(|(part, _)| *part != WIRE_KERNEL);
        parts.push(("receiver", receivers.to_vec()));
        parts
    }

    fn inner_parts(&self) -> Vec<(Part, Vec<i32>)> {
        let mut parts = self.path.parts();
        parts.extend(self.softirqs.iter().cloned());
        parts
    }

    fn parts(&self, pairs: &[Pair]) -> Vec<(Part, Vec<i32>)> {
        let mut parts = self.inner_parts();
        let pids = |end: fn(&Pair) -> &Load| pairs.iter().map(|pair| end(pair).pid()).collect();
        parts.push(("sender", pids(|pair| &pair.active)));
        parts.push(("receiver", pids(|pair| &pair.passive)));
        let rivals = self.rivals.values().flatten();
        let rivals = rivals.flat_map(|pair| [pair.active.pid(), pair.passive.pid()]);
        parts.push((RIVALS, rivals.collect()));
        parts
    }
}
