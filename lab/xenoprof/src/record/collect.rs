//! Collection of samples: empties the rings in a separate thread.

use crate::host::cpus::raw_ns;
use crate::sampler::Sampler;
use crate::sampler::elf::Foreign;
use crate::sampler::parse::{PerfRecord, RecordKind};
use crate::session::demux::Demux;
use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum time between reads of the rings.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum bytes of samples in memory, which suffice for hours at 1 kHz. Later samples count as
/// dropped.
const ROOM_BYTES: usize = 2 << 30;

/// Collected contents of the rings, in time order.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) records: Vec<PerfRecord>,
    pub(crate) nonsense: u64,
    /// Dropped samples by event, CPU and process.
    pub(crate) dropped: BTreeMap<(u32, u32, u32), u64>,
    /// Notes on events that shared counters.
    pub(crate) shared_counters: Vec<String>,
    pub(crate) foreign: Foreign,
}

/// A running collection.
pub(crate) struct Collector {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Collected>,
}

impl Collector {
    /// Starts sampling and collecting. Domains with a separate profiler receive their samples.
    pub(crate) fn start(
        mut sampler: Sampler,
        demux: Option<Arc<Mutex<Demux>>>,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        sampler.start()?;
        let thread = std::thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || {
                let mut budget = MemoryBudget::new(ROOM_BYTES);
                let mut collected = Collected::default();
                let mut fresh = Vec::new();
                let offer = |fresh: &[PerfRecord], read_ns| {
                    if let Some(demux) = &demux {
                        let mut demux = demux.lock().unwrap_or_else(PoisonError::into_inner);
                        demux.offer(fresh, read_ns);
                    }
                };
                while !asked.load(Ordering::Relaxed) {
                    sampler.wait(CHECK_INTERVAL);
                    let read_ns = raw_ns();
                    collected.nonsense += sampler.drain(&mut fresh);
                    offer(&fresh, read_ns);
                    budget.append(&mut fresh, &mut collected);
                }
                // If stopping fails, sampling ends when the descriptors are closed.
                let _stopped = sampler.stop();
                let read_ns = raw_ns();
                collected.nonsense += sampler.drain_all(&mut fresh);
                offer(&fresh, read_ns);
                budget.append(&mut fresh, &mut collected);
                collected.shared_counters = sampler.shared_counters();
                collected.foreign = sampler.into_foreign();
                collected.records.sort_by_key(|record| record.time_ns);
                collected
            })?;
        Ok(Self { stop, thread })
    }

    /// Stops and returns the collected records. Samples outside of `session` are discarded.
    pub(crate) fn stop(self, session: RangeInclusive<u64>) -> Collected {
        self.stop.store(true, Ordering::Relaxed);
        let mut collected = self.thread.join().unwrap_or_default();
        collected.records.retain(|record| {
            !matches!(record.kind, RecordKind::Sample { .. }) || session.contains(&record.time_ns)
        });
        collected
    }
}

/// Remaining memory, bytes.
struct MemoryBudget(usize);

impl MemoryBudget {
    const fn new(bytes: usize) -> Self {
        Self(bytes)
    }

    /// Keeps samples while memory remains, and all side-band records.
    fn append(&mut self, fresh: &mut Vec<PerfRecord>, collected: &mut Collected) {
        for record in fresh.drain(..) {
            if let RecordKind::Sample { pid, chain, .. } = &record.kind {
                let bytes = size_of::<PerfRecord>() + size_of_val::<[_]>(chain);
                if self.0 < bytes {
                    let whose = (record.event, record.cpu, *pid);
                    *collected.dropped.entry(whose).or_default() += 1;
                    continue;
                }
                self.0 -= bytes;
            }
            collected.records.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_samples_are_counted_and_side_band_is_kept() {
        let sample = PerfRecord {
            time_ns: 1,
            cpu: 1,
            event: 0,
            kind: RecordKind::Sample {
                pid: 7,
                tid: 7,
                chain: [].into(),
            },
        };
        let exit = PerfRecord {
            time_ns: 2,
            cpu: 1,
            event: 0,
            kind: RecordKind::Exit { pid: 7, tid: 7 },
        };
        let mut budget = MemoryBudget::new(size_of::<PerfRecord>() * 2);
        let mut collected = Collected::default();
        let mut fresh = vec![sample; 5];
        fresh.push(exit.clone());
        budget.append(&mut fresh, &mut collected);
        assert_eq!(collected.records.len(), 3);
        assert_eq!(collected.records.last(), Some(&exit));
        assert_eq!(collected.dropped, [((0, 1, 7), 3)].into());
        assert!(fresh.is_empty());
    }
}
