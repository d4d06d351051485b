//! What a session has found: one value, which [`mod@file`] writes and reads.
//!
//! Everything that needs the machine that was profiled (symbols, maps, names) is resolved before a
//! session is written, so that a file says the same on every machine.

pub mod file;

use figures::clean;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Session {
    /// How, where and when.
    pub head: Head,
    /// The domains; a [`Thread`] names one by its place here.
    pub domains: Vec<Domain>,
    /// The threads that were sampled.
    pub threads: Vec<Thread>,
    /// Programs, libraries, the kernel.
    pub modules: Vec<Module>,
    /// Functions; an inlined one is a frame of its own.
    pub frames: Vec<Frame>,
    /// Call stacks as a tree: each names its caller.
    pub stacks: Vec<Stack>,
    /// The samples, in order of time.
    pub samples: Vec<Sample>,
    /// The loss ledger.
    pub losses: Vec<Loss>,
}

/// How, where and when a session was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Version of the file's form: [`file::VERSION`].
    pub version: u32,
    /// The session's id.
    pub id: u64,
    /// The event that was sampled, by Xenoprof's name, or `cpu-clock`.
    pub event: String,
    /// How good the instrument is.
    pub tier: Tier,
    /// Events from one sample to the next; nanoseconds for `cpu-clock`.
    pub period: u64,
    /// Start, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Start, nanoseconds of `CLOCK_MONOTONIC_RAW`; samples count from here.
    pub started_raw_ns: u64,
    /// Length, nanoseconds.
    pub ran_ns: u64,
    /// CPUs that were sampled.
    pub cpus: Vec<u32>,
    /// Rate of the time stamp counter, Hz: what CPU time is multiplied with.
    pub tsc_hz: u64,
    /// The command that was run, if any.
    pub command: Vec<String>,
    /// CPU time of the profiler itself, nanoseconds.
    pub profiler_cpu_ns: u64,
    /// What the machine was: the provenance of reports.
    pub provenance: serde_json::Value,
    /// What could not be had, in words.
    pub notes: Vec<String>,
}

/// How good the sampling instrument is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// A counter of the PMU whose overflow is a non-maskable interrupt.
    PmuNmi,
    /// A counter of the PMU with a maskable interrupt.
    Pmu,
    /// A timer, all processes and the kernel.
    #[default]
    CpuClock,
    /// A timer, the user part of one's own processes.
    OwnUser,
}

impl Tier {
    /// One line for every report.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::PmuNmi => "PMU, non-maskable interrupt",
            Self::Pmu => {
                "PMU, maskable interrupt: code with interrupts off is seen where it turns them on"
            }
            Self::CpuClock => {
                "no PMU: cpu-clock timer; code with interrupts off is seen where it turns them on, \
                 so proportions come from samples, totals from exact counters"
            }
            Self::OwnUser => {
                "unprivileged: cpu-clock timer, the user part of one's own processes only"
            }
        }
    }

    /// Whether shares of classes may be compared below ten points.
    #[must_use]
    pub const fn is_fine(self) -> bool {
        matches!(self, Self::PmuNmi)
    }
}

/// What a domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// `grantwayd`.
    Monitor,
    /// A driver domain with its agent.
    Driver,
    /// A guest domain with its agent.
    Guest,
    /// Processes that were named, or belong to a command.
    Process,
    /// Kernel threads.
    Kernel,
    /// Nothing to do.
    Idle,
    /// The profiler itself.
    Profiler,
    /// Everything else.
    Other,
}

impl Kind {
    /// As rule files name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Monitor => "monitor",
            Self::Driver => "driver",
            Self::Guest => "guest",
            Self::Process => "process",
            Self::Kernel => "kernel",
            Self::Idle => "idle",
            Self::Profiler => "profiler",
            Self::Other => "other",
        }
    }
}

/// Who attributes a domain's samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The domain's own profiler.
    Active,
    /// The initiator, on its behalf.
    #[default]
    Passive,
    /// A sampler of its own in a machine of its own: never added to the host's time.
    AgentOnly,
}

/// A domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Who attributed its samples.
    pub mode: Mode,
    /// CPU time by the scheduler's exact account, nanoseconds; none where nothing counts it.
    pub cpu_ns: Option<u64>,
    /// Of it: what its agent used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ns: Option<u64>,
    /// What its own hop ledger says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<Ledger>,
    /// What it carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
    /// The samples that its own profiler was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<Buffer>,
    /// What is missing, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

impl Domain {
    fn texts(&mut self) -> impl Iterator<Item = &mut String> {
        std::iter::once(&mut self.name).chain(&mut self.missing)
    }
}

/// Samples that went through a domain's own ring: `offered` less `dropped` and `unread` is what its
/// profiler took out. The session holds them all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Its samples.
    pub offered: u64,
    /// Those for which the ring had no room.
    pub dropped: u64,
    /// Those that its profiler never took.
    pub unread: u64,
}

/// A domain's hop ledger between two readings of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Cycles by hop.
    pub hops: BTreeMap<String, u64>,
    /// CPU time that the scheduler counted for the domain's process between the same two
    /// readings, nanoseconds.
    pub cpu_ns: u64,
    /// Stamps taken.
    pub stamps: u64,
}

/// Frames that entered a driver domain's bridge between the first and the last reading of its
/// counters, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Traffic {
    /// Fewest packets that time is divided by: below, the time of a few pings and of everything
    /// that ran beside them would be told as the price of a packet.
    pub const PACKETS_MIN: f64 = 1000.0;

    /// Returns the denominator of `cycles_per_packet`: the papers' estimate, 1514-byte packets,
    /// where frames are large; the number of frames where they are small.
    ///
    /// # Errors
    /// The reason, where fewer than [`Self::PACKETS_MIN`] packets were carried.
    pub fn packets(self) -> Result<f64, String> {
        const FULL: u64 = 1514;
        let packets = match self.bytes.checked_div(self.frames) {
            None => return Err("the driver domain carried no packets".to_owned()),
            Some(bytes) if bytes >= FULL / 3 => self.bytes as f64 / FULL as f64,
            Some(_) => self.frames as f64,
        };
        if packets < Self::PACKETS_MIN {
            let (found, least) = (packets.ceil(), Self::PACKETS_MIN);
            return Err(format!(
                "the driver domain carried {found} packets, fewer than {least}"
            ));
        }
        Ok(packets)
    }
}

/// A thread that was sampled.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Thread {
    /// Its process.
    pub pid: u32,
    /// Its id.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Its domain.
    pub domain: u32,
}

/// Where code lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Space {
    /// In the kernel.
    Kernel,
    /// In a process.
    User,
}

/// A program, a library, or the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Module {
    /// Its path, or what the kernel calls the mapping.
    pub path: String,
    /// Where it runs.
    pub space: Space,
}

impl Module {
    /// The last part of its path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// A function in a module.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Its module.
    pub module: u32,
    /// Its name; an offset in hexadecimal where nothing knows one.
    pub symbol: String,
    /// Whether the compiler had put it into its caller.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inlined: bool,
}

/// A function as it was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stack(
    /// Its caller, a stack that stands before this one; none: the outermost.
    pub Option<u32>,
    /// The function.
    pub u32,
);

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample(
    /// Nanoseconds since the start.
    pub u64,
    /// The CPU.
    pub u32,
    /// The thread.
    pub u32,
    /// The stack.
    pub u32,
);

impl Session {
    /// Takes control characters out of everything that is shown. Names come from the processes that
    /// were profiled, who may want to speak to the reader's terminal.
    pub fn clean(&mut self) {
        let head = [&mut self.head.event].into_iter();
        let texts = head
            .chain(&mut self.head.command)
            .chain(&mut self.head.notes)
            .chain(self.domains.iter_mut().flat_map(Domain::texts))
            .chain(self.threads.iter_mut().map(|thread| &mut thread.name))
            .chain(self.modules.iter_mut().map(|module| &mut module.path))
            .chain(self.frames.iter_mut().map(|frame| &mut frame.symbol));
        for text in texts {
            if let Cow::Owned(cleaned) = clean::line(text) {
                *text = cleaned;
            }
        }
        for ledger in self.domains.iter_mut().filter_map(|d| d.ledger.as_mut()) {
            let hops = std::mem::take(&mut ledger.hops);
            let cleaned = |(hop, cycles): (String, u64)| (clean::line(&hop).into_owned(), cycles);
            ledger.hops = hops.into_iter().map(cleaned).collect();
        }
    }

    /// The thread of a sample.
    #[must_use]
    pub fn thread(&self, sample: &Sample) -> Option<&Thread> {
        self.threads.get(sample.2 as usize)
    }

    /// The domain of a sample, by its place.
    #[must_use]
    pub fn domain_of(&self, sample: &Sample) -> usize {
        self.thread(sample)
            .map_or(usize::MAX, |thread| thread.domain as usize)
    }

    /// The frames of a stack, from the innermost outwards, each with its number.
    pub fn frames_of(&self, stack: u32) -> impl Iterator<Item = (usize, &Frame)> {
        let mut next = Some(stack);
        std::iter::from_fn(move || {
            let stack = self.stacks.get(next? as usize)?;
            next = stack.0;
            let number = stack.1 as usize;
            Some((number, self.frames.get(number)?))
        })
    }

    /// The module of a frame.
    #[must_use]
    pub fn module(&self, frame: &Frame) -> Option<&Module> {
        self.modules.get(frame.module as usize)
    }
}

pub use crate::loss::Loss;
