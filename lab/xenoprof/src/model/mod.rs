//! The result of a session, which [`mod@file`] writes and reads.
//!
//! Everything that depends on the profiled machine (symbols, maps, names) is resolved before a
//! session is written, so that a file reads the same on every machine.

mod events;
pub mod file;

use crate::loss::is_first;
use figures::clean;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Marks the end of a truncated name.
const ELLIPSIS: char = '…';

/// A session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Session {
    /// How, where and when the session was recorded.
    pub head: Head,
    /// Domains. A [`Thread`] refers to one by its index.
    pub domains: Vec<ProfiledDomain>,
    /// Sampled threads.
    pub threads: Vec<Thread>,
    /// Programs, libraries and the kernel.
    pub modules: Vec<Module>,
    /// Source files.
    pub files: Vec<String>,
    /// Instructions by function. An inlined function is a separate frame.
    pub frames: Vec<StackFrame>,
    /// Call stacks as a tree: each entry refers to its caller.
    pub stacks: Vec<CallStack>,
    /// Samples, in time order.
    pub samples: Vec<Sample>,
    /// Events of the domains.
    pub markers: Vec<Marker>,
    /// Loss ledger.
    pub losses: Vec<Loss>,
}

/// How, where and when a session was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Format version of the file: [`file::VERSION`].
    pub version: u32,
    /// Session id.
    pub id: u64,
    /// The first sampled event, by the name in Xenoprof or `perf`.
    pub event: String,
    /// Quality of this event.
    pub tier: Tier,
    /// Events between its samples; nanoseconds for a clock.
    pub period: u64,
    /// The other sampled events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_events: Vec<SampledEvent>,
    /// Start, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Start in nanoseconds of `CLOCK_MONOTONIC_RAW`. Times of samples are relative to it.
    pub started_raw_ns: u64,
    /// Duration, nanoseconds.
    pub ran_ns: u64,
    /// Sampled CPUs.
    pub cpus: Vec<u32>,
    /// Rate of the time stamp counter, Hz; converts CPU time to cycles.
    pub tsc_hz: u64,
    /// The command that ran; empty if there was none.
    pub command: Vec<String>,
    /// CPU time of the profiler itself, nanoseconds.
    pub profiler_cpu_ns: u64,
    /// Description of the machine, for the provenance of reports.
    pub provenance: serde_json::Value,
    /// Notes about missing data.
    pub notes: Vec<String>,
}

/// A sampled event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampledEvent {
    /// Name in Xenoprof or `perf`.
    pub event: String,
    /// Quality.
    pub tier: Tier,
    /// Events between samples; nanoseconds for a clock.
    pub period: u64,
}

/// Quality of the sampling instrument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// A PMU counter whose overflow raises a non-maskable interrupt.
    PmuNmi,
    /// A PMU counter with a maskable interrupt.
    Pmu,
    /// A timer, covering all processes and the kernel.
    #[default]
    CpuClock,
    /// An event that the kernel counts itself, and samples where it happens.
    Software,
    /// An event of any kind, covering only user code of this user's processes.
    OwnUser,
}

impl Tier {
    /// Returns the line that every report prints.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::PmuNmi => "PMU, non-maskable interrupt",
            Self::Pmu => {
                "PMU, maskable interrupt: code with interrupts off is sampled when it turns them on"
            }
            Self::CpuClock => {
                "no PMU: cpu-clock timer; code with interrupts off is sampled when it turns them \
                 on, so proportions come from samples, totals from exact counters"
            }
            Self::Software => "software event: sampled where it happens",
            Self::OwnUser => "unprivileged: only user code of your own processes",
        }
    }

    /// Returns whether shares of classes may be compared below ten points.
    #[must_use]
    pub const fn is_fine(self) -> bool {
        matches!(self, Self::PmuNmi | Self::Software)
    }
}

/// Kind of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DomainKind {
    /// The core, `grantwayd`, and its helpers.
    Monitor,
    /// A driver domain with its agent.
    Driver,
    /// A guest domain with its agent.
    Guest,
    /// The device of a NIC with its agent: it represents hardware.
    Device,
    /// Processes named by the user, or started by a command.
    Process,
    /// Kernel threads.
    Kernel,
    /// The idle task.
    Idle,
    /// The profiler itself.
    Profiler,
    /// Everything else.
    Other,
}

impl DomainKind {
    /// Returns the name in rule files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Monitor => "monitor",
            Self::Driver => "driver",
            Self::Guest => "guest",
            Self::Device => "device",
            Self::Process => "process",
            Self::Kernel => "kernel",
            Self::Idle => "idle",
            Self::Profiler => "profiler",
            Self::Other => "other",
        }
    }
}

/// The side that attributes a domain's samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The domain's profiler.
    Active,
    /// The initiator, on the domain's behalf.
    #[default]
    Passive,
    /// A separate sampler in a separate machine. Its time is never added to the host's.
    AgentOnly,
}

/// A domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfiledDomain {
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: DomainKind,
    /// The side that attributed its samples.
    pub mode: Mode,
    /// CPU time by the scheduler's exact account, nanoseconds. Unset if not counted.
    pub cpu_ns: Option<u64>,
    /// The part of this time that the domain's agent used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_ns: Option<u64>,
    /// Its hop ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<HopLedger>,
    /// Its traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<BridgeTraffic>,
    /// Samples delivered to its profiler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<RingStats>,
    /// Missing data, as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

impl ProfiledDomain {
    fn texts(&mut self) -> impl Iterator<Item = &mut String> {
        std::iter::once(&mut self.name).chain(&mut self.missing)
    }
}

/// Samples that passed through a domain's ring. The domain's profiler received `offered` minus
/// `dropped` and `unread`; the session contains all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingStats {
    /// Samples of the domain.
    pub offered: u64,
    /// Samples for which the ring had no space.
    pub dropped: u64,
    /// Samples that its profiler never read.
    pub unread: u64,
}

/// A domain's hop ledger between two readings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HopLedger {
    /// Cycles by hop.
    pub hops: BTreeMap<String, u64>,
    /// CPU time of the domain's process between the same readings, from the scheduler, nanoseconds.
    pub cpu_ns: u64,
    /// Number of stamps.
    pub stamps: u64,
    /// Cycles between stamps that the domain removed, because its CPU clock did not confirm them.
    #[serde(default)]
    pub corrected: u64,
    /// Time in which the domain's process could have run but had no CPU, nanoseconds.
    #[serde(default)]
    pub waited_ns: u64,
    /// Number of times that another process took its CPU.
    #[serde(default)]
    pub preempted: u64,
}

/// Frames that entered a driver domain's bridge between the first and the last reading of its
/// counters, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeTraffic {
    /// Frames.
    pub frames: u64,
    /// Bytes of these frames.
    pub bytes: u64,
}

impl BridgeTraffic {
    /// Minimum number of packets for figures per packet. With fewer, for example a few pings, the
    /// time of everything else that ran would count as the cost of packets.
    pub const PACKETS_MIN: f64 = 1000.0;

    /// Returns the denominator of `cycles_per_packet`: for large frames the papers' estimate, the
    /// number of 1514-byte packets; for small frames the number of frames.
    ///
    /// # Errors
    /// Returns the reason if fewer than [`Self::PACKETS_MIN`] packets were carried.
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

/// A sampled thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Thread {
    /// Process.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Name.
    pub name: String,
    /// Domain.
    pub domain: u32,
}

/// Where code runs.
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
    /// Path, or the kernel's name of the mapping.
    pub path: String,
    /// Kernel or user space.
    pub space: Space,
    /// Build id of the file, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
}

impl Module {
    /// Returns the last component of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Returns whether this is the code of a domain's agent, which has neither symbols nor callers.
    #[must_use]
    pub fn is_agent(&self) -> bool {
        self.space == Space::User && self.name().starts_with("memfd:grantway-agent")
    }

    fn texts(&mut self) -> impl Iterator<Item = &mut String> {
        std::iter::once(&mut self.path).chain(&mut self.build_id)
    }
}

/// An instruction in a function, or the whole function if its instructions are unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StackFrame {
    /// Module.
    pub module: u32,
    /// Name, or a hexadecimal offset if the name is unknown.
    pub symbol: String,
    /// True if the compiler inlined it into its caller.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inlined: bool,
    /// Address of the instruction in the file, and of the function that contains it: those that a
    /// disassembler shows. Inlined functions have their callers' addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Source line of the instruction; for a caller, that of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Location>,
}

/// Address of an instruction, and of the function that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Code(
    /// Address of the instruction.
    pub u64,
    /// Address of the first instruction of the function.
    pub u64,
);

/// A source line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Location(
    /// File.
    pub u32,
    /// Line number, from 1.
    pub u32,
);

/// A call of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallStack(
    /// The caller, an earlier stack. `None` for the outermost function.
    pub Option<u32>,
    /// The function.
    pub u32,
);

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample(
    /// Nanoseconds since the start.
    pub u64,
    /// CPU.
    pub u32,
    /// Thread.
    pub u32,
    /// Stack.
    pub u32,
    /// Event, by its number in [`Head::events`].
    #[serde(default, skip_serializing_if = "is_first")]
    pub u32,
);

/// An event of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// Domain.
    pub domain: u32,
    /// Kind.
    pub kind: MarkerKind,
    /// Beginning, nanoseconds since the start.
    pub from_ns: u64,
    /// End. The counters changed between this time and `from_ns`.
    pub to_ns: u64,
    /// Changes of the counters by name: reasons of drops, or `granted`, `revoked` and `forced`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkerKind {
    /// The domain's process exited, and another one replaced it.
    Restart,
    /// Domains of the monitor's machine granted pages, or their grants were revoked.
    Grants,
    /// The domain dropped frames.
    Drops,
}

/// Maximum number of events of a session.
pub const EVENTS_MAX: usize = 64;
/// Maximum length of a name, bytes.
pub const NAME_MAX: usize = 4096;
/// Maximum frames of a stack. Recorders drop the outermost callers of deeper ones.
pub const DEPTH_MAX: u32 = 1024;

/// Replaces control characters and truncates a text to [`NAME_MAX`] bytes.
fn shown(text: &str) -> Cow<'_, str> {
    let most = NAME_MAX - ELLIPSIS.len_utf8();
    let cut = match text.len() > NAME_MAX {
        true => text.floor_char_boundary(most),
        false => return clean::line(text),
    };
    let kept = text.get(..cut).unwrap_or_default();
    Cow::Owned(format!("{}{ELLIPSIS}", clean::line(kept)))
}

/// Returns the number of frames of a stack with this caller; `depths` has those of all earlier
/// stacks.
pub(crate) fn depth_below(caller: Option<u32>, depths: &[u32]) -> u32 {
    let caller = caller.and_then(|caller| depths.get(caller as usize));
    caller.map_or(1, |depth| depth.saturating_add(1))
}

impl Session {
    /// Replaces control characters in all displayed texts, and truncates names to [`NAME_MAX`].
    /// Profiled processes choose their names, and a hostile one could send escape sequences to the
    /// reader's terminal.
    pub fn clean(&mut self) {
        let more = self.head.more_events.iter_mut();
        let texts = std::iter::once(&mut self.head.event)
            .chain(more.map(|sampled| &mut sampled.event))
            .chain(&mut self.head.command)
            .chain(&mut self.head.notes)
            .chain(self.domains.iter_mut().flat_map(ProfiledDomain::texts))
            .chain(self.threads.iter_mut().map(|thread| &mut thread.name))
            .chain(self.modules.iter_mut().flat_map(Module::texts))
            .chain(&mut self.files)
            .chain(self.frames.iter_mut().map(|frame| &mut frame.symbol));
        for text in texts {
            if let Cow::Owned(cleaned) = shown(text) {
                *text = cleaned;
            }
        }
        let ledgers = self.domains.iter_mut().filter_map(|d| d.ledger.as_mut());
        let hops = ledgers.map(|ledger| &mut ledger.hops);
        for counts in hops.chain(self.markers.iter_mut().map(|marker| &mut marker.counts)) {
            let cleaned = |(name, count): (String, u64)| (shown(&name).into_owned(), count);
            *counts = std::mem::take(counts).into_iter().map(cleaned).collect();
        }
    }

    /// Returns the thread of a sample.
    #[must_use]
    pub fn thread(&self, sample: &Sample) -> Option<&Thread> {
        self.threads.get(sample.2 as usize)
    }

    /// Returns the domain index of a sample.
    #[must_use]
    pub fn domain_of(&self, sample: &Sample) -> usize {
        self.thread(sample)
            .map_or(usize::MAX, |thread| thread.domain as usize)
    }

    /// Returns the frames of a stack with their indices, innermost first.
    pub fn frames_of(&self, stack: u32) -> impl Iterator<Item = (usize, &StackFrame)> {
        let mut next = Some(stack);
        std::iter::from_fn(move || {
            let stack = self.stacks.get(next? as usize)?;
            next = stack.0;
            let number = stack.1 as usize;
            Some((number, self.frames.get(number)?))
        })
    }

    /// Returns the number of frames of each stack.
    #[must_use]
    pub fn depths(&self) -> Vec<u32> {
        let mut depths: Vec<u32> = Vec::with_capacity(self.stacks.len());
        for CallStack(caller, _) in &self.stacks {
            depths.push(depth_below(*caller, &depths));
        }
        depths
    }

    /// Returns the source file and the line of a frame.
    #[must_use]
    pub fn source(&self, frame: &StackFrame) -> Option<(&str, u32)> {
        let Location(file, line) = frame.source?;
        Some((self.files.get(file as usize)?, line))
    }

    /// Returns the module of a frame.
    #[must_use]
    pub fn module(&self, frame: &StackFrame) -> Option<&Module> {
        self.modules.get(frame.module as usize)
    }
}

pub use crate::loss::Loss;
