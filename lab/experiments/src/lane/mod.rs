//! Lanes: a path between a wire and a guest, with ordinary sockets at both ends.
//!
//! Every column of a plan is a lane: the machine itself, the one-process forwarder, the kernel's
//! veth and bridge. All are there at once, asleep; the runner wakes one at a time, so that rounds
//! of different columns can follow each other without being set up anew.

pub mod forward;
pub mod kernel_path;
pub mod machine;
pub mod one_process;
pub mod window;

use crate::load::{Load, Role, Spec};
use crate::ns::Namespace;
use crate::plan::Lro;
use anyhow::Context as _;
use figures::measure::{CpuTimes, Part, kernel_threads};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use window::Work;

/// Name of the interface at both ends of a lane.
pub const IFNAME: &str = "gw0";
/// The wire's address.
pub const WIRE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// The guest's address; further guests have those after it.
pub const GUEST: IpAddr = guest_address(0);
const fn guest_address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2 + number))
}

/// Bits of the network's prefix.
pub const PREFIX: u8 = 24;

/// Which way payload goes. In request and response: which way requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the wire to the guest.
    ToGuest,
    /// From the guest to the wire.
    FromGuest,
}

impl Direction {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::ToGuest, Self::FromGuest];

    /// Its name as a key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToGuest => "to_guest",
            Self::FromGuest => "from_guest",
        }
    }
}

/// Where what stands between the ends runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Driver and guest on the guest's core, only the wire's socket on the other.
    OneCore,
    /// The driver on the wire's core, the guest on its own; a second worker of the driver's on the
    /// guest's.
    Split,
}

impl Place {
    /// Its name as a key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneCore => "one-core",
            Self::Split => "split",
        }
    }
}

/// The cores of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cores {
    /// Where the wire's socket lives.
    pub wire: usize,
    /// Where the guest's socket, and the guest, live.
    pub guest: usize,
}

impl Cores {
    /// Of this machine: the first two cores that may be used, or the only one twice.
    #[must_use]
    pub fn choose() -> Self {
        let cores = figures::measure::cores();
        let wire = cores.first().copied().unwrap_or(0);
        Self {
            wire,
            guest: cores.get(1).copied().unwrap_or(wire),
        }
    }

    /// The driver's (or forwarder's) core.
    #[must_use]
    pub const fn driver(self, place: Place) -> usize {
        match place {
            Place::OneCore => self.guest,
            Place::Split => self.wire,
        }
    }
}

/// What lies between the two ends.
pub trait Between {
    /// Its processes and kernel threads, by whom they are charged to.
    fn parts(&self) -> Vec<(Part, Vec<i32>)>;

    /// What it knows about itself just now: counters that only grow.
    ///
    /// # Errors
    /// If it has gone.
    fn reading(&mut self) -> anyhow::Result<Reading>;

    /// The machine, if it is one.
    fn machine(&self) -> Option<&machine::Running> {
        None
    }
}

/// A path's own counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Counters and sums by name: `drops.<reason>`, `<domain>.hop.<hop>` in cycles, … as
    /// [`window`] documents them.
    pub sums: BTreeMap<String, f64>,
    /// The most that something was since the path is up: `under_way`, frames of one source.
    pub most: BTreeMap<String, f64>,
}

impl Reading {
    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let sums = self
            .sums
            .iter()
            .map(|(name, now)| {
                let before = earlier.sums.get(name).copied().unwrap_or(0.0);
                (name.clone(), now - before)
            })
            .collect();
        Self {
            sums,
            most: self.most.clone(),
        }
    }
}

/// A lane: two namespaces, what lies between, and loads in both directions.
pub struct Lane {
    /// One pair for every guest.
    pairs: BTreeMap<(Work, Direction), Vec<Pair>>,
    between: Box<dyn Between>,
    /// Kernel threads that do what softirqs put off. Whoever's packets they carry, they are the
    /// lane's: the others sleep.
    softirqs: Vec<i32>,
    // Last, so that loads and path end first.
    _ends: Ends,
}

/// What is to run over a lane: every work in every direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Loads {
    /// Streams, requests.
    pub works: Vec<Work>,
    /// Which way.
    pub directions: Vec<Direction>,
    /// Connections of a stream's sender.
    pub flows: u32,
}

impl Default for Loads {
    fn default() -> Self {
        Self {
            works: Work::BOTH.to_vec(),
            directions: Direction::BOTH.to_vec(),
            flows: 1,
        }
    }
}

/// The namespaces at both ends.
#[derive(Debug)]
pub struct Ends {
    /// Behind the wire.
    pub wire: Namespace,
    /// Behind the guest.
    pub guest: Namespace,
    /// Behind further guests.
    pub further: Vec<Namespace>,
}

impl Ends {
    /// Two new namespaces.
    ///
    /// # Errors
    /// If this user may not make them.
    pub fn new() -> anyhow::Result<Self> {
        Self::of_guests(1)
    }

    /// New namespaces of a wire and of so many guests, at least one.
    ///
    /// # Errors
    /// As [`Ends::new`].
    pub fn of_guests(guests: u32) -> anyhow::Result<Self> {
        let further = (1..guests).map(|_| Namespace::new("guest namespace"));
        Ok(Self {
            wire: Namespace::new("wire namespace")?,
            guest: Namespace::new("guest namespace")?,
            further: further.collect::<Result<_, _>>()?,
        })
    }

    /// The guests' namespaces, and the addresses in them.
    pub fn guests(&self) -> impl Iterator<Item = (&Namespace, IpAddr)> {
        let all = std::iter::once(&self.guest).chain(&self.further);
        (0..).zip(all).map(|(n, guest)| (guest, guest_address(n)))
    }
}

/// Who asks or sends, and who answers or receives.
struct Pair {
    active: Load,
    passive: Load,
}

impl Lane {
    /// Puts loads at both ends of a path that is up.
    ///
    /// # Errors
    /// If a load cannot start or does not reach the other end.
    pub fn new(
        ends: Ends,
        between: Box<dyn Between>,
        cores: Cores,
        loads: &Loads,
    ) -> anyhow::Result<Self> {
        let mut lane = Self {
            pairs: BTreeMap::new(),
            between,
            softirqs: kernel_threads(&["ksoftirqd/"]),
            _ends: ends,
        };
        let wire = (lane._ends.wire.path(), cores.wire, WIRE);
        let guests: Vec<_> = lane
            ._ends
            .guests()
            .map(|(guest, address)| (guest.path(), cores.guest, address))
            .collect();
        let each = loads
            .works
            .iter()
            .flat_map(|&work| loads.directions.iter().map(move |&way| (work, way)));
        let each = each.flat_map(|load| guests.iter().map(move |guest| (load, guest)));
        for (port, ((work, direction), guest)) in (5201u16..).zip(each) {
            let (from, to) = match direction {
                Direction::ToGuest => (&wire, guest),
                Direction::FromGuest => (guest, &wire),
            };
            let (active, passive, size) = match work {
                Work::Stream => (Role::Source, Role::Sink, 0),
                Work::Requests(size) => (Role::Client, Role::Echo, size),
            };
            let load = |role, (netns, cpu, _): &(PathBuf, usize, IpAddr)| {
                Load::start(&Spec {
                    role,
                    netns: Some(netns.clone()),
                    cpu: Some(*cpu),
                    address: SocketAddr::new(to.2, port),
                    size,
                    flows: loads.flows as usize,
                })
            };
            let passive = load(passive, to)?;
            let active = load(active, from)?;
            let pairs = lane.pairs.entry((work, direction)).or_default();
            pairs.push(Pair { active, passive });
        }
        Ok(lane)
    }

    /// What lies between.
    #[must_use]
    pub fn between(&self) -> &dyn Between {
        self.between.as_ref()
    }

    /// Switches the machine between to another way of aggregating.
    ///
    /// # Errors
    /// If there is none, or it refuses.
    pub fn switch(&mut self, lro: &Lro) -> anyhow::Result<()> {
        let machine = self.between.machine().context("no machine to switch")?;
        machine.switch(lro)
    }

    /// From now on the receiver of a stream takes at most so many bytes with one call.
    ///
    /// # Errors
    /// If there is no stream in this direction, or the receiver has gone.
    pub fn receive_by(&mut self, direction: Direction, bytes: usize) -> anyhow::Result<()> {
        let pairs = self.pairs.get_mut(&(Work::Stream, direction));
        let mut pairs = pairs.context("no such stream")?.iter_mut();
        pairs.try_for_each(|pair| pair.passive.take(bytes))
    }

    /// Starts the streams of a direction, or stops them.
    ///
    /// # Errors
    /// If a sender has gone.
    pub fn stream(&mut self, direction: Direction, go: bool) -> anyhow::Result<()> {
        let pairs = self.pairs.get_mut(&(Work::Stream, direction));
        let mut pairs = pairs.context("no such stream")?.iter_mut();
        pairs.try_for_each(|Pair { active, .. }| if go { active.go() } else { active.stop() })
    }

    /// Bytes that the first guest's stream has brought since this was last asked.
    ///
    /// # Errors
    /// If there is no such stream, or its receiver has gone.
    pub fn arrived(&mut self, direction: Direction) -> anyhow::Result<u64> {
        let pairs = self.pairs.get_mut(&(Work::Stream, direction));
        let first = pairs.and_then(|pairs| pairs.first_mut());
        let mark = first.context("no such stream")?.passive.mark()?;
        Ok(mark.bytes)
    }

    fn cpu_times(&self, pairs: &[Pair]) -> CpuTimes {
        let mut parts = self.between.parts();
        parts.push(("nic_kernel", self.softirqs.clone()));
        let pids = |end: fn(&Pair) -> &Load| pairs.iter().map(|pair| end(pair).pid()).collect();
        parts.push(("sender", pids(|pair| &pair.active)));
        parts.push(("receiver", pids(|pair| &pair.passive)));
        CpuTimes::read(&parts)
    }
}
