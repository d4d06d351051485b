//! What is sampled: Xenoprof's events where there is a PMU, a timer elsewhere.

use crate::model::Tier;
use perf_event::Builder;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Software};

/// An event, by Xenoprof's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// Clock cycles outside of halt.
    Cycles,
    /// Instructions retired.
    Instructions,
    /// Misses of the last cache.
    CacheMisses,
    /// Misses of the data TLB.
    DtlbMisses,
    /// Misses of the instruction TLB.
    ItlbMisses,
    /// Nanoseconds of each CPU, by timer.
    CpuClock,
}

/// Names, in the order of Xenoprof's paper, and what they are.
const NAMES: &[(&str, Event)] = &[
    ("cycles", Event::Cycles),
    ("instructions", Event::Instructions),
    ("cache-misses", Event::CacheMisses),
    ("dtlb-misses", Event::DtlbMisses),
    ("itlb-misses", Event::ItlbMisses),
    ("cpu-clock", Event::CpuClock),
];

impl Event {
    /// The event of this name.
    ///
    /// # Errors
    /// The names that there are.
    pub fn find(name: &str) -> Result<Self, String> {
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, event)| *event)
            .ok_or_else(|| {
                let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
                format!("no event `{name}`; there is: {}", names.join(", "))
            })
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|(_, event)| *event == self)
            .map_or("", |(name, _)| name)
    }

    /// What is to be opened.
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

    /// Events from one sample to the next for about `hz` samples a second and CPU. Misses are
    /// rarer than cycles; how many there are is only known afterwards.
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

    /// How good an instrument it is here.
    ///
    /// A successful open proves nothing, so the event is made to happen and counted.
    ///
    /// # Errors
    /// One sentence why this machine cannot count it.
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
            0 => Err(absent("it opens, and counts nothing")),
            _ => Ok(tier_of_pmu(
                &std::fs::read_to_string("/proc/interrupts").unwrap_or_default(),
            )),
        }
    }

    /// The best event of this machine, and how good it is.
    #[must_use]
    pub fn best() -> (Self, Tier) {
        match Self::Cycles.probe() {
            Ok(tier) => (Self::Cycles, tier),
            Err(_) => (Self::CpuClock, Tier::CpuClock),
        }
    }
}

/// x86 counters overflow by NMI, and the line `NMI` of `/proc/interrupts` is where that shows.
fn tier_of_pmu(interrupts: &str) -> Tier {
    let nmis = interrupts
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("NMI:"));
    match nmis {
        Some(_) => Tier::PmuNmi,
        None => Tier::Pmu,
    }
}

/// Touches many pages and instructions, so that any event of the list happens.
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
    fn names_go_both_ways() {
        for (name, event) in NAMES {
            assert_eq!(Event::find(name), Ok(*event));
            assert_eq!(event.name(), *name);
        }
        assert!(Event::find("clock").unwrap_err().contains("cpu-clock"));
    }

    #[test]
    fn periods_make_the_rate() {
        assert_eq!(Event::CpuClock.period(1000, 1), 1_000_000);
        assert_eq!(Event::Cycles.period(1000, 2_300_000_000), 2_300_000);
        assert_eq!(Event::Cycles.period(0, 0), 1);
    }

    #[test]
    fn an_event_is_there_or_refused_in_a_sentence() {
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
