//! Events that can be sampled: Xenoprof's events on machines with a PMU, and the kernel's own.

use crate::model::{SampledEvent, Tier};
use crate::unit::Unit;
use figures::Failure;
use perf_event::Builder;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Software};
use std::io;

/// An event, by the name that it has in Xenoprof or `perf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// Clock cycles outside of halt.
    Cycles,
    /// Retired instructions.
    Instructions,
    /// Misses of the last-level cache.
    CacheMisses,
    /// Misses of the data TLB.
    DtlbMisses,
    /// Misses of the instruction TLB.
    ItlbMisses,
    /// Nanoseconds of each CPU, by a timer.
    CpuClock,
    /// Nanoseconds of the sampled tasks, by a timer.
    TaskClock,
    /// Page faults.
    PageFaults,
    /// Switches to another task.
    ContextSwitches,
    /// Moves of a task to another CPU.
    CpuMigrations,
}

/// Names: first those of the Xenoprof paper, in its order.
const NAMES: &[(&str, Event)] = &[
    ("cycles", Event::Cycles),
    ("instructions", Event::Instructions),
    ("cache-misses", Event::CacheMisses),
    ("dtlb-misses", Event::DtlbMisses),
    ("itlb-misses", Event::ItlbMisses),
    ("cpu-clock", Event::CpuClock),
    ("task-clock", Event::TaskClock),
    ("page-faults", Event::PageFaults),
    ("context-switches", Event::ContextSwitches),
    ("cpu-migrations", Event::CpuMigrations),
];

impl Event {
    /// Returns the event with this name.
    ///
    /// # Errors
    /// Returns the known names.
    pub fn find(name: &str) -> Result<Self, String> {
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, event)| *event)
            .ok_or_else(|| {
                let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
                format!("unknown event `{name}`; known events: {}", names.join(", "))
            })
    }

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|(_, event)| *event == self)
            .map_or("", |(name, _)| name)
    }

    /// Returns the unit that it counts.
    #[must_use]
    pub fn unit(self) -> Unit {
        Unit::of(self.name())
    }

    /// Returns whether the kernel counts it itself. Each occurrence can be sampled, and reading a
    /// sample causes further ones.
    #[must_use]
    pub const fn is_software(self) -> bool {
        matches!(
            self,
            Self::PageFaults | Self::ContextSwitches | Self::CpuMigrations
        )
    }

    /// Returns whether it occurs only in the kernel, so that a user who may not sample the kernel
    /// would get no samples of it.
    #[must_use]
    pub const fn is_only_in_kernel(self) -> bool {
        matches!(self, Self::ContextSwitches | Self::CpuMigrations)
    }

    /// Returns the builder of its counter.
    #[must_use]
    pub fn builder(self) -> Builder<'static> {
        let read_misses = |which| Cache {
            which,
            operation: CacheOp::READ,
            result: CacheResult::MISS,
        };
        match self {
            Self::Cycles => Builder::new(Hardware::CPU_CYCLES),
            Self::Instructions => Builder::new(Hardware::INSTRUCTIONS),
            Self::CacheMisses => Builder::new(Hardware::CACHE_MISSES),
            Self::DtlbMisses => Builder::new(read_misses(CacheId::DTLB)),
            Self::ItlbMisses => Builder::new(read_misses(CacheId::ITLB)),
            Self::CpuClock => Builder::new(Software::CPU_CLOCK),
            Self::TaskClock => Builder::new(Software::TASK_CLOCK),
            Self::PageFaults => Builder::new(Software::PAGE_FAULTS),
            Self::ContextSwitches => Builder::new(Software::CONTEXT_SWITCHES),
            Self::CpuMigrations => Builder::new(Software::CPU_MIGRATIONS),
        }
    }

    /// Returns the number of events between samples for about `hz` samples per second and CPU.
    /// Misses are rarer than cycles, and their number is known only afterwards. The kernel's own
    /// events are so rare that each is sampled.
    #[must_use]
    pub fn period(self, hz: u64, tsc_hz: u64) -> u64 {
        let hz = hz.max(1);
        match self {
            Self::CpuClock | Self::TaskClock => 1_000_000_000 / hz,
            Self::Cycles | Self::Instructions => tsc_hz / hz,
            Self::CacheMisses => tsc_hz / hz / 500,
            Self::DtlbMisses | Self::ItlbMisses => tsc_hz / hz / 1000,
            Self::PageFaults | Self::ContextSwitches | Self::CpuMigrations => 1,
        }
        .max(1)
    }

    /// Returns the quality of the event on this machine.
    ///
    /// A successful open of a PMU counter proves nothing, so the probe causes the event and reads
    /// its count.
    ///
    /// # Errors
    /// Returns the reason, in one sentence, if this machine cannot count it.
    pub fn probe(self) -> Result<Tier, String> {
        if self.unit() == Unit::Nanoseconds {
            return Ok(Tier::CpuClock);
        }
        if self.is_software() {
            return match self.builder().build() {
                // The sampler reports missing privileges, with the remedy.
                Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(format!(
                    "this machine's kernel does not count {} ({error})",
                    self.name()
                )),
                _ => Ok(Tier::Software),
            };
        }
        let absent = |why: &str| {
            format!(
                "this machine's kernel offers no PMU counter for {} ({why}): \
                 sample --event cpu-clock instead, or run where virtual machines get a PMU",
                self.name()
            )
        };
        let mut counter = self.builder().build().map_err(|e| absent(&e.to_string()))?;
        let count = |e: io::Error| absent(&e.to_string());
        counter.enable().map_err(count)?;
        happen();
        counter.disable().map_err(count)?;
        match counter.read().map_err(count)? {
            0 => Err(absent("the counter opens but counts nothing")),
            _ => Ok(tier_of_pmu(
                &std::fs::read_to_string("/proc/interrupts").unwrap_or_default(),
            )),
        }
    }

    /// Returns the best event of this machine, and its quality.
    #[must_use]
    pub fn best() -> (Self, Tier) {
        match Self::Cycles.probe() {
            Ok(tier) => (Self::Cycles, tier),
            Err(_) => (Self::CpuClock, Tier::CpuClock),
        }
    }
}

/// An event as a session samples it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventConfig {
    /// The event.
    pub event: Event,
    /// Its quality.
    pub tier: Tier,
    /// Events between samples.
    pub period: u64,
}

impl EventConfig {
    /// Returns the configuration of an event for about `hz` samples per second and CPU. `text` is
    /// its name, or `NAME/period=N/` as for `perf`.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if the text is malformed, and [`Failure::CannotRun`] if this
    /// machine cannot count the event.
    pub fn parse(text: &str, hz: u64, tsc_hz: u64) -> Result<Self, Failure> {
        let (name, period) = match text.split_once('/') {
            None => (text, None),
            Some((name, term)) => {
                let period = term.strip_prefix("period=");
                let number = period.and_then(|term| term.strip_suffix('/')?.parse().ok());
                let wrong = || format!("event `{text}`: expected NAME or NAME/period=N/");
                let number = number.filter(|number| *number > 0);
                (name, Some(number.ok_or_else(|| Failure::Usage(wrong()))?))
            }
        };
        let event = Event::find(name).map_err(Failure::Usage)?;
        Ok(Self {
            event,
            tier: event.probe().map_err(Failure::CannotRun)?,
            period: period.unwrap_or_else(|| event.period(hz, tsc_hz)),
        })
    }

    /// Returns the configurations of the named events, or of the best event if there are none.
    ///
    /// # Errors
    /// See [`Self::parse`]. No event can be named twice, because its name selects its samples.
    pub fn of(names: &[String], hz: u64, tsc_hz: u64) -> Result<Vec<Self>, Failure> {
        if names.is_empty() {
            return Ok(vec![Self::best(hz, tsc_hz)]);
        }
        let mut all: Vec<Self> = Vec::new();
        for name in names {
            let config = Self::parse(name, hz, tsc_hz)?;
            if all.iter().any(|other| other.event == config.event) {
                let name = config.event.name();
                return Err(Failure::Usage(format!("event `{name}` is named twice")));
            }
            all.push(config);
        }
        Ok(all)
    }

    /// Returns the configuration of this machine's best event.
    #[must_use]
    pub fn best(hz: u64, tsc_hz: u64) -> Self {
        let (event, tier) = Event::best();
        Self {
            event,
            tier,
            period: event.period(hz, tsc_hz),
        }
    }

    /// Returns the event's entry in a session.
    #[must_use]
    pub fn sampled(&self) -> SampledEvent {
        SampledEvent {
            event: self.event.name().to_owned(),
            tier: self.tier,
            period: self.period,
        }
    }
}

/// Returns the quality of PMU counters. On x86 they overflow by NMI if `/proc/interrupts` has a
/// line `NMI`.
fn tier_of_pmu(interrupts: &str) -> Tier {
    let nmis = interrupts
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("NMI:"));
    match nmis {
        Some(_) => Tier::PmuNmi,
        None => Tier::Pmu,
    }
}

/// Accesses many pages and executes many instructions, to cause every event in the list.
fn happen() {
    const PAGES: usize = 4096;
    let mut memory = vec![0u8; PAGES * 4096];
    for at in (0..memory.len()).step_by(4096) {
        if let Some(byte) = memory.get_mut(at) {
            *byte = std::hint::black_box(1);
        }
    }
    std::hint::black_box(&memory);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_events_convert() {
        for (name, event) in NAMES {
            assert_eq!(Event::find(name), Ok(*event));
            assert_eq!(event.name(), *name);
        }
        assert!(Event::find("clock").unwrap_err().contains("cpu-clock"));
    }

    #[test]
    fn only_clocks_and_cycles_measure_time() {
        for (_, event) in NAMES {
            let unit = match event {
                Event::CpuClock | Event::TaskClock => Unit::Nanoseconds,
                Event::Cycles => Unit::Cycles,
                _ => Unit::Occurrences,
            };
            assert_eq!(event.unit(), unit, "{}", event.name());
        }
    }

    #[test]
    fn periods_match_the_rate() {
        assert_eq!(Event::CpuClock.period(1000, 1), 1_000_000);
        assert_eq!(Event::Cycles.period(1000, 2_300_000_000), 2_300_000);
        assert_eq!(Event::Cycles.period(0, 0), 1);
        assert_eq!(Event::PageFaults.period(1000, 1), 1);
    }

    #[test]
    fn several_events_can_be_named() {
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            EventConfig::of(&names, 1000, 1)
        };
        let both = of(&["cpu-clock", "page-faults/period=7/"]).unwrap();
        let found: Vec<_> = both.iter().map(|c| (c.event, c.tier, c.period)).collect();
        let clock = (Event::CpuClock, Tier::CpuClock, 1_000_000);
        assert_eq!(found, [clock, (Event::PageFaults, Tier::Software, 7)]);
        for wrong in [
            "page-faults/",
            "page-faults/period=0/",
            "page-faults/freq=9/",
        ] {
            let error = of(&[wrong]).unwrap_err().to_string();
            assert!(error.contains("NAME/period=N/"), "{error}");
        }
        let error = of(&["cpu-clock", "cpu-clock/period=7/"]).unwrap_err();
        assert_eq!(error.to_string(), "event `cpu-clock` is named twice");
        assert_eq!(of(&[]).unwrap(), [EventConfig::best(1000, 1)]);
    }

    #[test]
    fn an_event_works_or_has_a_reason() {
        for (_, event) in NAMES {
            if let Err(why) = event.probe() {
                assert!(why.contains(event.name()), "{why}");
                let is_hardware = Event::CpuClock > *event;
                assert_eq!(why.contains("cpu-clock"), is_hardware, "{why}");
                assert!(!why.contains('\n'), "{why}");
            }
        }
    }

    #[test]
    fn the_tier_of_a_pmu_is_read_from_the_interrupts() {
        let with = "           CPU0\n NMI:   3   Non-maskable interrupts\n";
        assert_eq!(tier_of_pmu(with), Tier::PmuNmi);
        assert_eq!(tier_of_pmu("           CPU0\n  1: 9\n"), Tier::Pmu);
    }
}
