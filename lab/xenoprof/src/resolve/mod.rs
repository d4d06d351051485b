//! Conversion of records to a session: address spaces, threads, stacks and symbols.

mod address_spaces;
mod interner;
mod jit;
pub(crate) mod program;
mod symbols;

use symbols::Frames;
pub use symbols::Symbolizer;

use crate::host::process::CodeMapping;
use crate::model::{CallStack, DEPTH_MAX, Module, Sample, Session, Space, Thread, depth_below};
use crate::sampler::elf::Foreign;
use crate::sampler::parse::{Address, PerfRecord, RecordKind};
use crate::session::message::AddressName;
use address_spaces::{Place, Spaces};
use interner::Interner;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Converts records, in time order, to samples.
#[derive(Debug, Default)]
pub struct Resolver {
    start_ns: u64,
    foreign: Arc<Foreign>,
    spaces: Spaces,
    /// Locations of addresses that participants named.
    named: HashMap<(u32, u64), Place>,
    modules: Interner<Module>,
    places: Interner<Place>,
    /// Stack nodes: caller and location.
    nodes: Interner<(Option<u32>, u32)>,
    threads: Interner<(u32, u32)>,
    names: BTreeMap<u32, String>,
    parents: BTreeMap<u32, u32>,
    /// Times at which processes exited.
    exits: BTreeMap<u32, u64>,
    samples: Vec<Sample>,
    kernel_lost: BTreeMap<OfRing, u64>,
    /// The nanoseconds without sampling, and the start of such an interval in progress.
    throttled: BTreeMap<OfRing, (u64, Option<u64>)>,
}

/// Event and CPU of a ring.
type OfRing = (u32, u32);

impl Resolver {
    /// Creates a resolver for a session that starts at this time of `CLOCK_MONOTONIC_RAW`.
    #[must_use]
    pub fn new(start_ns: u64) -> Self {
        Self {
            start_ns,
            ..Self::default()
        }
    }

    /// Adds the files of other mount namespaces, before their mappings.
    pub(crate) fn with_foreign(self, foreign: Arc<Foreign>) -> Self {
        Self { foreign, ..self }
    }

    /// Adds the mappings that a process had when the session began.
    pub fn process(&mut self, pid: u32, mappings: &[CodeMapping]) {
        for mapping in mappings {
            self.map(pid, mapping);
        }
    }

    /// Sets a thread's name.
    pub fn thread_name(&mut self, tid: u32, name: String) {
        self.names.insert(tid, name);
    }

    /// Sets the location of an address in a process, as named by the process's profiler. `address`
    /// is a result of [`lookup`].
    pub fn named(&mut self, pid: u32, address: u64, path: &str, offset: u64) {
        let module = self.modules.intern(Module {
            path: path.to_owned(),
            space: Space::User,
            build_id: None,
        });
        self.named.insert((pid, address), Place { module, offset });
    }

    /// Returns the names of addresses in known files. `wanted` has pairs of a process and an
    /// address that is a result of [`lookup`].
    #[must_use]
    pub fn names(
        &self,
        symbolizer: &mut Symbolizer,
        wanted: &BTreeSet<(u32, u64)>,
    ) -> Vec<AddressName> {
        let found: Vec<((u32, u64), Place)> = wanted
            .iter()
            .filter_map(|&(pid, address)| Some(((pid, address), self.find(pid, address)?)))
            .collect();
        let places: Vec<Place> = found.iter().map(|(_, place)| *place).collect();
        let mut frames = Frames::default();
        let named = symbolizer.frames(&self.modules.values, &places, &mut frames);
        let name = |number: &u32| {
            let frame = frames.frames.values.get(*number as usize)?;
            Some((frame.symbol.clone(), frame.inlined))
        };
        found
            .into_iter()
            .zip(named)
            .filter_map(|(((pid, address), place), numbers)| {
                let module = self.modules.values.get(place.module as usize)?;
                Some(AddressName {
                    pid,
                    address,
                    module: module.path.clone(),
                    offset: place.offset,
                    frames: numbers.iter().filter_map(name).collect(),
                })
            })
            .collect()
    }

    fn find(&self, pid: u32, address: u64) -> Option<Place> {
        let named = self.named.get(&(pid, address)).copied();
        named.or_else(|| self.spaces.find(pid, address))
    }

    /// Returns the parents of processes that started during the session.
    #[must_use]
    pub const fn parents(&self) -> &BTreeMap<u32, u32> {
        &self.parents
    }

    /// Returns the times at which processes exited, nanoseconds of `CLOCK_MONOTONIC_RAW`.
    #[must_use]
    pub const fn exits(&self) -> &BTreeMap<u32, u64> {
        &self.exits
    }

    /// Returns the number of records that the kernel could not write, by event and CPU.
    #[must_use]
    pub const fn kernel_lost(&self) -> &BTreeMap<OfRing, u64> {
        &self.kernel_lost
    }

    /// Returns the nanoseconds by event and CPU in which the kernel had stopped sampling. `end_ns`
    /// is the session's end.
    #[must_use]
    pub fn throttled_ns(&self, end_ns: u64) -> BTreeMap<OfRing, u64> {
        let sum = |(ring, (sum, since)): (&OfRing, &(u64, Option<u64>))| {
            let last = since.map_or(0, |since| end_ns.saturating_sub(since));
            (*ring, sum + last)
        };
        self.throttled.iter().map(sum).collect()
    }

    /// Returns the sampled threads: process and thread.
    #[must_use]
    pub fn threads(&self) -> &[(u32, u32)] {
        &self.threads.values
    }

    /// Returns the samples so far.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Starts a new interval: discards samples and stacks, but keeps information about processes.
    pub fn forget_samples(&mut self) {
        self.samples.clear();
        self.places = Interner::default();
        self.nodes = Interner::default();
        self.threads = Interner::default();
        self.kernel_lost.clear();
    }

    fn map(&mut self, pid: u32, mapping: &CodeMapping) {
        let is_anonymous = jit::is_anonymous(&mapping.path);
        let module = self.modules.intern(Module {
            path: match is_anonymous {
                true => jit::module(pid),
                false => match self.foreign.path(pid, &mapping.path) {
                    Some(path) => path.to_owned(),
                    None => mapping.path.clone(),
                },
            },
            space: Space::User,
            build_id: None,
        });
        let mut mapping = mapping.clone();
        if is_anonymous {
            mapping.offset = mapping.start;
        }
        self.spaces.map(pid, &mapping, module);
    }

    /// Processes records in time order.
    pub fn take_all(&mut self, records: Vec<PerfRecord>) {
        records.into_iter().for_each(|record| self.take(record));
    }

    /// Processes a record.
    pub fn take(&mut self, record: PerfRecord) {
        let ring = (record.event, record.cpu);
        match record.kind {
            RecordKind::Sample { pid, tid, chain } => {
                let thread = self.threads.intern((pid, tid));
                let stack = self.stack(pid, &chain);
                let time = record.time_ns.saturating_sub(self.start_ns);
                let sample = Sample(time, record.cpu, thread, stack, record.event);
                self.samples.push(sample);
            }
            RecordKind::Comm {
                pid,
                tid,
                name,
                exec,
            } => {
                self.names.insert(tid, name);
                if exec {
                    self.spaces.exec(pid);
                }
            }
            RecordKind::Map {
                pid,
                start,
                len,
                offset,
                path,
            } => self.map(
                pid,
                &CodeMapping {
                    start,
                    len,
                    offset,
                    path,
                },
            ),
            RecordKind::Fork { pid, parent, tid } => {
                if pid != parent {
                    self.parents.insert(pid, parent);
                    self.spaces.fork(parent, pid);
                }
                if let Some(name) = self.names.get(&parent).cloned() {
                    self.names.entry(tid).or_insert(name);
                }
            }
            // Nothing is removed, because another ring may still hold samples of the process.
            RecordKind::Exit { pid, tid } if pid == tid => {
                self.exits.insert(pid, record.time_ns);
            }
            RecordKind::Exit { .. } => {}
            RecordKind::Lost(count) => *self.kernel_lost.entry(ring).or_default() += count,
            RecordKind::Throttle { stops } => {
                let (sum, since) = self.throttled.entry(ring).or_default();
                *sum += record
                    .time_ns
                    .saturating_sub(since.take().unwrap_or(record.time_ns));
                *since = stops.then_some(record.time_ns);
            }
        }
    }

    /// Returns the node of a chain of addresses, innermost first.
    fn stack(&mut self, pid: u32, chain: &[Address]) -> u32 {
        let mut node = None;
        for (depth, address) in self.credible(pid, chain).iter().enumerate().rev() {
            let place = match *address {
                Address::Kernel(address) => Place {
                    module: self.kernel(),
                    offset: lookup(depth, address),
                },
                Address::User(address) => {
                    let address = lookup(depth, address);
                    match self.find(pid, address) {
                        Some(place) => place,
                        None => Place {
                            module: self.unknown(),
                            offset: address,
                        },
                    }
                }
            };
            let place = self.places.intern(place);
            node = Some(self.nodes.intern((node, place)));
        }
        match node {
            Some(node) => node,
            None => {
                let place = Place {
                    module: self.unknown(),
                    offset: 0,
                };
                let place = self.places.intern(place);
                self.nodes.intern((None, place))
            }
        }
    }

    /// Returns the plausible part of a chain, which a caller outside of code ends. In code without
    /// frame pointers the unwinder reads arbitrary stack contents.
    fn credible<'a>(&self, pid: u32, chain: &'a [Address]) -> &'a [Address] {
        let mut users = 0;
        let false_caller = |address: &Address| match *address {
            Address::Kernel(_) => false,
            Address::User(address) => {
                users += 1;
                users > 1 && self.find(pid, lookup(users, address)).is_none()
            }
        };
        let end = chain.iter().position(false_caller).unwrap_or(chain.len());
        chain.get(..end).unwrap_or_default()
    }

    fn kernel(&mut self) -> u32 {
        self.modules.intern(Module {
            path: KERNEL.to_owned(),
            space: Space::Kernel,
            build_id: None,
        })
    }

    fn unknown(&mut self) -> u32 {
        self.modules.intern(Module {
            path: "[unknown]".to_owned(),
            space: Space::User,
            build_id: None,
        })
    }

    /// Returns the session, except its head, domains and losses. `domain` returns the domain of a
    /// process.
    pub fn session(
        &self,
        symbolizer: &mut Symbolizer,
        mut domain: impl FnMut(u32) -> u32,
    ) -> Session {
        let mut frames = Frames::default();
        let named = symbolizer.frames(&self.modules.values, &self.places.values, &mut frames);
        let mut stacks = Interner::default();
        let mut depths: Vec<u32> = Vec::new();
        let mut of_node: Vec<Option<u32>> = Vec::new();
        for (caller, place) in &self.nodes.values {
            let mut stack = caller.and_then(|node| of_node.get(node as usize).copied().flatten());
            for frame in named.get(*place as usize).into_iter().flatten() {
                let has_room =
                    |stack: &u32| depths.get(*stack as usize).is_some_and(|d| *d < DEPTH_MAX);
                let caller = stack.filter(has_room);
                let number = stacks.intern(CallStack(caller, *frame));
                if number as usize == depths.len() {
                    depths.push(depth_below(caller, &depths));
                }
                stack = Some(number);
            }
            of_node.push(stack);
        }
        let samples = self.samples.iter().map(|sample| {
            let stack = of_node.get(sample.3 as usize).copied().flatten();
            Sample(sample.0, sample.1, sample.2, stack.unwrap_or(0), sample.4)
        });
        let threads = self.threads.values.iter().map(|&(pid, tid)| Thread {
            pid,
            tid,
            name: match pid {
                0 => "idle".to_owned(),
                _ => self.names.get(&tid).cloned().unwrap_or_default(),
            },
            domain: domain(pid),
        });
        let used: BTreeSet<u32> = frames.frames.values.iter().map(|f| f.module).collect();
        let modules = (0u32..).zip(&self.modules.values).map(|(number, module)| {
            let is_used = used.contains(&number);
            let build_id = is_used.then(|| symbolizer.build_id(module)).flatten();
            Module {
                build_id,
                ..module.clone()
            }
        });
        Session {
            threads: threads.collect(),
            samples: samples.collect(),
            modules: modules.collect(),
            files: frames.files.values,
            frames: frames.frames.values,
            stacks: stacks.values,
            ..Session::default()
        }
    }
}

/// Returns the address to look up for the call stack entry at `depth` (0 is innermost). The address
/// of a caller is the return address; the byte before it lies within the call instruction.
#[must_use]
pub fn lookup(depth: usize, address: u64) -> u64 {
    address.saturating_sub(u64::from(depth > 0))
}

/// The kernel's name among the modules.
pub const KERNEL: &str = "[kernel]";

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time_ns: u64, pid: u32, chain: &[Address]) -> PerfRecord {
        PerfRecord {
            time_ns,
            cpu: 1,
            event: 0,
            kind: RecordKind::Sample {
                pid,
                tid: pid,
                chain: chain.into(),
            },
        }
    }

    fn event(kind: RecordKind) -> PerfRecord {
        PerfRecord {
            time_ns: 0,
            cpu: 0,
            event: 0,
            kind,
        }
    }

    fn map(pid: u32, start: u64, path: &str) -> PerfRecord {
        event(RecordKind::Map {
            pid,
            start,
            len: 0x1000,
            offset: 0,
            path: path.to_owned(),
        })
    }

    /// Returns names without symbols: modules and offsets.
    fn names(resolver: &Resolver) -> Vec<String> {
        let session = resolver.session(&mut Symbolizer::without_symbols(), |_| 0);
        session
            .samples
            .iter()
            .map(|sample| {
                let frames = session.frames_of(sample.3).map(|(_, frame)| {
                    format!("{}+{}", session.module(frame).unwrap().path, frame.symbol)
                });
                frames.collect::<Vec<_>>().join(" < ")
            })
            .collect()
    }

    #[test]
    fn mappings_follow_fork_and_exec() {
        let mut resolver = Resolver::new(100);
        let ip = [Address::User(0x4010)];
        resolver.take(map(5, 0x4000, "/a"));
        resolver.take(sample(101, 5, &ip));
        resolver.take(event(RecordKind::Fork {
            pid: 6,
            parent: 5,
            tid: 6,
        }));
        resolver.take(sample(102, 6, &ip));
        resolver.take(event(RecordKind::Comm {
            pid: 6,
            tid: 6,
            name: "b".to_owned(),
            exec: true,
        }));
        resolver.take(sample(103, 6, &ip));
        resolver.take(map(6, 0x4000, "/b"));
        resolver.take(sample(104, 6, &ip));
        resolver.take(sample(105, 5, &ip));
        assert_eq!(
            names(&resolver),
            [
                "/a+0x10",
                "/a+0x10",
                "[unknown]+0x4010",
                "/b+0x10",
                "/a+0x10"
            ]
        );
        assert_eq!(resolver.parents(), &[(6, 5)].into());
    }

    #[test]
    fn callers_are_looked_up_within_their_call() {
        let mut resolver = Resolver::new(0);
        resolver.take(map(5, 0x4000, "/a"));
        let chain = [
            Address::Kernel(0xffff_0000),
            Address::Kernel(0xffff_0010),
            Address::User(0x4001),
        ];
        resolver.take(sample(1, 5, &chain));
        resolver.take(sample(2, 5, &chain));
        resolver.take(sample(3, 5, &[]));
        let names = names(&resolver);
        let whole = "[kernel]+0xffff0000 < [kernel]+0xffff000f < /a+0x0";
        assert_eq!(names, [whole, whole, "[unknown]+0x0"]);
        assert_eq!(resolver.nodes.values.len(), 4, "equal stacks are one");
    }

    #[test]
    fn callers_outside_of_code_end_the_stack() {
        let mut resolver = Resolver::new(0);
        resolver.take(map(5, 0x4000, "/a"));
        let chain = [0x4010, 0x4021, 0xdead, 0x4031].map(Address::User);
        resolver.take(sample(1, 5, &chain));
        assert_eq!(names(&resolver), ["/a+0x10 < /a+0x20"]);
    }

    #[test]
    fn code_without_a_file_is_found_by_its_address() {
        let mut resolver = Resolver::new(0);
        for (pid, path) in [(5, ""), (6, "//anon")] {
            resolver.take(map(pid, 0x4000, path));
            resolver.take(sample(1, pid, &[Address::User(0x4010)]));
        }
        let expected = ["[anonymous 5]+0x4010", "[anonymous 6]+0x4010"];
        assert_eq!(names(&resolver), expected);
    }

    #[test]
    fn a_new_interval_keeps_address_spaces() {
        let mut resolver = Resolver::new(0);
        resolver.take(map(5, 0x4000, "/a"));
        resolver.take(sample(1, 5, &[Address::User(0x4010)]));
        resolver.forget_samples();
        assert!(names(&resolver).is_empty());
        resolver.take(sample(2, 5, &[Address::User(0x4020)]));
        assert_eq!(names(&resolver), ["/a+0x20"]);
    }

    #[test]
    fn names_of_a_domains_profiler_take_precedence() {
        let mut theirs = Resolver::new(0);
        theirs.take(map(5, 0x4000, "/a"));
        let wanted = BTreeSet::from([(5, 0x4010), (5, 0x4020), (5, 0x9000)]);
        let names = theirs.names(&mut Symbolizer::without_symbols(), &wanted);
        assert_eq!(names.len(), 2, "unmapped addresses have no name: {names:?}");

        let (mut ours, mut symbolizer) = (Resolver::new(0), Symbolizer::without_symbols());
        ours.take(map(5, 0x4000, "/other"));
        symbolizer.add_names(
            "web:/a",
            0x10,
            vec![("outer".to_owned(), false), ("inner".to_owned(), true)],
        );
        ours.named(5, 0x4010, "web:/a", 0x10);
        ours.take(sample(1, 5, &[0x4010, 0x4021].map(Address::User)));
        let session = ours.session(&mut symbolizer, |_| 0);
        let symbols: Vec<&str> = session
            .stacks
            .iter()
            .map(|stack| session.frames[stack.1 as usize].symbol.as_str())
            .collect();
        assert_eq!(symbols, ["0x20", "outer", "inner"]);
    }

    #[test]
    fn throttled_times_are_summed_by_cpu() {
        let mut resolver = Resolver::new(0);
        for (time_ns, stops) in [(10, true), (15, false), (20, false), (30, true)] {
            resolver.take(PerfRecord {
                time_ns,
                cpu: 1,
                event: 0,
                kind: RecordKind::Throttle { stops },
            });
        }
        assert_eq!(resolver.throttled_ns(100), [((0, 1), 5 + 70)].into());
    }

    #[test]
    fn losses_are_counted_by_cpu() {
        let mut resolver = Resolver::new(0);
        resolver.take(event(RecordKind::Lost(3)));
        resolver.take(event(RecordKind::Lost(4)));
        assert_eq!(resolver.kernel_lost(), &[((0, 0), 7)].into());
    }
}
