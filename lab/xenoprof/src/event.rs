//! Events that can be sampled: Xenoprof's events on machines with a PMU, a timer elsewhere.

use crate::model::Tier;
use perf_event::Builder;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Software};

/// An event, by Xenoprof's name.
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
}

/// Names, in the order of the Xenoprof paper.
const NAMES: &[(&str, Event)] = &[
    ("cycles", Event::Cycles),
    ("instructions", Event::Instructions),
    ("cache-misses", Event::CacheMisses),
    ("dtlb-misses", Event::DtlbMisses),
    ("itlb-misses", Event::ItlbMisses),
    ("cpu-clock", Event::CpuClock),
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
        }
    }

    /// Returns the number of events between samples for about `hz` samples per second and CPU.
    /// Misses are rarer than cycles, and their number is known only afterwards.
    #[must_use]
    pub fn period(self, hz: u64, tsc_hz: u64) -> u64 {
        let hz = hz.max(1);
        match self {
            Self::CpuClock => 1_000_000_000 / hz,
            Self::Cycles | Self::Instructions => tsc_hz / hz,
            Self::CacheMisses => tsc_hz / hz / 500,
            Self::DtlbMisses | Self::ItlbMisses => tsc_hz / hz / 1000,
        }
        .max(1)
    }

    /// Returns the quality of the event on this machine.
    ///
    /// A successful open proves nothing, so the probe causes the event and reads its count.
    ///
    /// # Errors
    /// Returns the reason, in one sentence, if this machine cannot count it.
    pub fn probe(self) -> Result<Tier, String> {
        if self == Self::CpuClock {
            return Ok(Tier::CpuClock);
        }
        let absent = |why: &str| {
            format!(
                "this machine's kernel offers no PMU counter for {} ({why}): \
                 sample --event cpu-clock instead, or run where virtual machines get a PMU",
                self.name()
            )
        };
        let mut counter = self.builder().build().map_err(|e| absent(&e.to_string()))?;
        let count = |e: std::io::Error| absent(&e.to_string());
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
    fn periods_match_the_rate() {
        assert_eq!(Event::CpuClock.period(1000, 1), 1_000_000);
        assert_eq!(Event::Cycles.period(1000, 2_300_000_000), 2_300_000);
        assert_eq!(Event::Cycles.period(0, 0), 1);
    }

    #[test]
    fn an_event_works_or_has_a_reason() {
        for (_, event) in NAMES {
            if let Err(why) = event.probe() {
                assert!(
                    why.contains(event.name()) && why.contains("cpu-clock"),
                    "{why}"
                );
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
