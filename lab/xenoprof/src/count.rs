//! Exact counts of hardware events by process, like `perf stat`. Each thread has separate counters.
//! If the PMU has fewer counters than requested, counts are scaled by the share of the time in
//! which the event was counted.

use crate::event::Event;
use perf_event::{Counter, CounterData};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;

/// Events other than cycles that are counted per packet, if the PMU supports them.
pub const PER_PACKET_EVENTS: [Event; 4] = [
    Event::Instructions,
    Event::CacheMisses,
    Event::DtlbMisses,
    Event::ItlbMisses,
];

/// Returns the events per packet that this machine can count.
pub fn possible() -> &'static [Event] {
    static FOUND: OnceLock<Vec<Event>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut found = PER_PACKET_EVENTS.to_vec();
        found.retain(|event| event.probe().is_ok());
        found
    })
}

/// Running counters of processes, grouped by a name.
#[derive(Debug)]
pub struct Counting {
    counters: Vec<(&'static str, Event, Counter)>,
}

/// Values of counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventCounts {
    /// By name and event.
    pub sums: BTreeMap<(&'static str, Event), f64>,
    /// The smallest share of a thread's time in which an event was counted. It is 1 unless events
    /// shared a counter.
    pub least_share: Option<f64>,
}

impl Counting {
    /// Starts counting events of these processes and of threads that they create, including their
    /// time in the kernel. Skips processes that have exited.
    ///
    /// # Errors
    /// Returns an error if this user may not count them, or no descriptors are left.
    pub fn start(of: &[(&'static str, Vec<i32>)], events: &[Event]) -> io::Result<Self> {
        let mut counters = Vec::new();
        if events.is_empty() {
            return Ok(Self { counters });
        }
        let threads = of.iter().flat_map(|(name, pids)| {
            let threads = pids.iter().copied().flat_map(threads);
            threads.map(move |thread| (*name, thread))
        });
        for (name, thread) in threads {
            for &event in events {
                let mut counter = event.builder();
                counter
                    .observe_pid(thread)
                    .any_cpu()
                    .include_kernel()
                    .inherit(true)
                    .enabled(true);
                match counter.build() {
                    Ok(counter) => counters.push((name, event, counter)),
                    Err(error) if has_exited(&error) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Self { counters })
    }

    /// Returns the counts so far.
    ///
    /// # Errors
    /// Returns an error if a counter cannot be read.
    pub fn read(&mut self) -> io::Result<EventCounts> {
        let mut counts = EventCounts::default();
        for (name, event, counter) in &mut self.counters {
            let (count, share) = scaled(&counter.read_full()?);
            *counts.sums.entry((*name, *event)).or_default() += count;
            let least = counts.least_share.into_iter().chain(share);
            counts.least_share = least.reduce(f64::min);
        }
        Ok(counts)
    }
}

/// Returns the count, extrapolated to the thread's whole time, and the share of the time that was
/// counted (`None` if the thread did not run).
fn scaled(seen: &CounterData) -> (f64, Option<f64>) {
    let share = share_counted(seen);
    let count = match share {
        Some(share) if share > 0.0 => seen.count() as f64 / share,
        _ => 0.0,
    };
    (count, share)
}

/// Returns the share of its time in which a counter counted (`None` if it had no time).
pub(crate) fn share_counted(seen: &CounterData) -> Option<f64> {
    let seconds = |time: Option<std::time::Duration>| time.unwrap_or_default().as_secs_f64();
    let (enabled, running) = (seconds(seen.time_enabled()), seconds(seen.time_running()));
    (enabled > 0.0).then(|| running / enabled)
}

fn has_exited(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

fn threads(pid: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// Starts a shell that works whenever it reads a line, and then prints a line.
    fn worker() -> Child {
        let script = "read go; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo; read end";
        Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn work(worker: &mut Child) {
        use std::io::{Read as _, Write as _};
        worker.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let mut done = [0];
        let out = worker.stdout.as_mut().unwrap();
        out.read_exact(&mut done).unwrap();
    }

    fn end(mut worker: Child) {
        drop(worker.stdin.take());
        worker.wait().unwrap();
    }

    /// Uses an event that needs no PMU: nanoseconds on a CPU.
    #[test]
    fn only_the_given_process_is_counted() {
        let (mut busy, mut other) = (worker(), worker());
        let idle = worker();
        let pid = |child: &Child| child.id().cast_signed();
        let of = [
            ("busy", vec![pid(&busy), i32::MAX]),
            ("idle", vec![pid(&idle)]),
        ];
        let mut counting = match Counting::start(&of, &[Event::CpuClock]) {
            Ok(counting) => counting,
            Err(error) => {
                for worker in [busy, other, idle] {
                    end(worker);
                }
                return testing::skip(format!("perf_event_open of processes ({error})"));
            }
        };
        let used = |child: &Child| figures::measure::cpu_ns(pid(child)).unwrap() as f64;
        let before = used(&busy);
        work(&mut busy);
        work(&mut other);
        let counts = counting.read().unwrap();
        let exact = used(&busy) - before;
        let of = |name| counts.sums[&(name, Event::CpuClock)];
        let ratio = of("busy") / exact;
        assert!((0.5..=1.5).contains(&ratio), "{} of {exact}", of("busy"));
        assert!(of("idle") < of("busy") / 2.0, "{}", of("idle"));
        assert_eq!(
            counts.least_share,
            Some(1.0),
            "the CPU clock is never shared"
        );
        for worker in [busy, other, idle] {
            end(worker);
        }
    }

    #[test]
    fn counting_nothing_opens_no_counter() {
        let own = std::process::id().cast_signed();
        let mut none = Counting::start(&[("own", vec![own])], &[]).unwrap();
        assert_eq!(none.read().unwrap(), EventCounts::default());
        assert!(none.counters.is_empty());
    }

    #[test]
    fn possible_events_can_be_probed() {
        for event in PER_PACKET_EVENTS {
            assert_eq!(possible().contains(&event), event.probe().is_ok());
        }
    }
}
