//! A window on a lane, which runs one load for some time and reads all counters before and after
//! it.

use super::Lane;
use super::events::{self, PerfEvents};
use super::ledgers;
use super::pair::{Pair, later};
use super::reading::Reading;
use super::rivals::{self, RivalLoad};
use super::running::{RIVALS, is_rival};
use crate::load::{Load, Mark};
use crate::plan::{PayloadDirection, Times, Workload};
use figures::interrupt;
use figures::measure::{CpuPart, CpuTimes, HostCpuTimes};
use figures::metric::SEGMENT_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use xenoprof::count::EventCounts;

/// Result of a window.
#[derive(Clone, Debug)]
pub struct Window {
    /// Workload.
    pub workload: Workload,
    /// Counters of the receiver (stream) or client (requests).
    pub mark: Mark,
    /// Counters of guests that are not measured, by load.
    pub rivals: BTreeMap<RivalLoad, Mark>,
    /// CPU nanoseconds by part.
    pub cpu_ns: BTreeMap<CpuPart, u64>,
    /// Total time for which processors were busy, nanoseconds. In addition to the parts, it
    /// includes softirqs on an idle core, other kernel threads and other programs.
    pub busy_ns: u64,
    /// Hardware events, if they can be counted.
    pub events: EventCounts,
    /// Increase of the path's counters.
    pub path: Reading,
    /// True if the underlying hypervisor stole too much CPU time.
    pub disturbed: bool,
}

impl Lane {
    /// Measures a window.
    ///
    /// # Errors
    /// Returns an error if a load or the path has exited, or the user interrupted the run.
    pub fn window(
        &mut self,
        workload: Workload,
        direction: PayloadDirection,
        times: Times,
    ) -> anyhow::Result<Window> {
        // Removed temporarily, so that `self` can be borrowed to read the path.
        let Some(mut pairs) = self.pairs.remove(&(workload, direction)) else {
            anyhow::bail!("no load for {workload:?} {}", direction.name());
        };
        let seen = self.observe(&mut pairs, workload, direction, times);
        self.pairs.insert((workload, direction), pairs);
        seen
    }

    fn observe(
        &mut self,
        pairs: &mut [Pair],
        workload: Workload,
        direction: PayloadDirection,
        times: Times,
    ) -> anyhow::Result<Window> {
        let seen = match each(self.active(pairs, direction), Load::go) {
            Ok(()) => self.open(pairs, workload, times),
            Err(error) => Err(error),
        };
        // Loads stop even after an error, because no load may run during another lane's window.
        let stopped = each(self.active(pairs, direction), Load::stop);
        // Data in flight must be delivered before another lane's window opens.
        interrupt::sleep(Duration::from_millis(10))?;
        let seen = seen?;
        stopped?;
        Ok(seen)
    }

    /// Returns the senders and clients, rivals first.
    fn active<'a>(
        &'a mut self,
        pairs: &'a mut [Pair],
        direction: PayloadDirection,
    ) -> impl Iterator<Item = &'a mut Load> {
        let rivals = self.rivals.get_mut(&direction).into_iter().flatten();
        let rivals = rivals.map(|rival| &mut rival.pair);
        rivals.chain(pairs).map(|pair| &mut pair.active)
    }

    fn open(
        &mut self,
        pairs: &mut [Pair],
        workload: Workload,
        times: Times,
    ) -> anyhow::Result<Window> {
        interrupt::sleep(times.warm_up)?;
        let path = self.path.reading()?;
        let (machine, began) = (HostCpuTimes::read(), Instant::now());
        let parts = self.parts(pairs);
        let events = PerfEvents::start(&parts);
        let cpu = CpuTimes::read(&parts);
        rivals::marks(self.rivals.values_mut().flatten())?;
        mark(pairs, workload)?;
        interrupt::sleep(times.window)?;
        let mark = mark(pairs, workload)?;
        let rivals = rivals::marks(self.rivals.values_mut().flatten())?;
        let cpu_ns = CpuTimes::read(&self.parts(pairs)).since(&cpu);
        let events = events.end();
        let (now, wall) = (HostCpuTimes::read(), began.elapsed());
        let disturbed = now.disturbed_since(machine);
        let busy_ns = now.busy_since(machine, wall).as_nanos() as u64;
        let path = self.path.reading()?.since(&path);
        Ok(Window {
            workload,
            mark,
            rivals,
            cpu_ns,
            busy_ns,
            events,
            path,
            disturbed,
        })
    }
}

/// Applies `f` to every item, also after a failure, and returns the first error.
fn each<T>(
    all: impl Iterator<Item = T>,
    act: impl Fn(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut outcome = Ok(());
    for one in all {
        outcome = outcome.and(act(one));
    }
    outcome
}

/// Returns the sums over all pairs since the last mark. Latencies are those of the slowest pair.
fn mark(pairs: &mut [Pair], workload: Workload) -> anyhow::Result<Mark> {
    let mut all = Mark::default();
    let mut kernels = BTreeSet::new();
    for pair in pairs {
        // Segment counters cover a whole namespace, so they count once for two pairs in it.
        let first = u64::from(kernels.insert(&pair.at));
        let mark = match workload {
            Workload::Stream => pair.passive.mark(),
            Workload::Requests(_) => pair.active.mark(),
        }?;
        all = Mark {
            ns: all.ns.max(mark.ns),
            bytes: all.bytes + mark.bytes,
            operations: all.operations + mark.operations,
            cpu_ns: all.cpu_ns + mark.cpu_ns,
            segments: all.segments + first * mark.segments,
            sent_segments: all.sent_segments + first * mark.sent_segments,
            frames: all.frames + first * mark.frames,
            frame_bytes: all.frame_bytes + first * mark.frame_bytes,
            p50_us: later(all.p50_us, mark.p50_us),
            p99_us: later(all.p99_us, mark.p99_us),
        };
    }
    Ok(all)
}

impl Window {
    /// Returns the window's figures by metric. A stream has `throughput`, `cycles_per_byte.X`,
    /// `cycles_per_packet.X`, `frame_bytes` (the mean frame that the receiver's interfaces
    /// received) and the figures of [`events`]; requests have `transactions` and `latency_us.*`.
    /// Both have figures from the path's counters, whose sums have these names:
    ///
    /// | name | meaning |
    /// |---|---|
    /// | `<domain>.hop.<hop>` | cycles of the ledger |
    /// | `<domain>.cpu` | cycles of CPU time of the domain's threads, as the domain counts them |
    /// | `<domain>.cpu_ns` | the same in nanoseconds |
    /// | `<domain>.corrected` | cycles that the ledger removed because the CPU clock did not
    /// confirm them |
    /// | `<domain>.waited_ns`, `<domain>.preempted` | waits of its main thread for a CPU, and how
    /// often another thread took it |
    /// | `stolen_ns` | time that the underlying hypervisor took from all CPUs |
    /// | `drops.<reason>` | packets |
    /// | `<domain>.lro.segments`, `<domain>.lro.aggregates` | packets into and out of LRO |
    /// | `granted_anew` | pages that entered guests' pools of receive buffers |
    /// | `lro.waits.<ns>` | aggregates whose first packet waited N nanoseconds |
    /// | `lro.wait_sum_ns` | sum of all these waits |
    /// | `acks`, `sacks` | acknowledgements sent to the wire, and the selective ones of them |
    /// | `wire_received`, `wire_sent` | packets that the NICs received and sent |
    /// | `interrupts` | interrupts of NICs' devices in software |
    ///
    /// `segments_per_ack` is the number of segments delivered to the receiver's TCP (an aggregate
    /// is one) per acknowledgement. A delayed acknowledgement answers two segments.
    #[must_use]
    pub fn figures(&self, tsc_hz: u64) -> BTreeMap<String, f64> {
        let mut out = BTreeMap::new();
        let seconds = self.mark.ns as f64 / 1e9;
        if seconds <= 0.0 {
            return out;
        }
        if let Some(count) = self.path.sums.get("interrupts") {
            out.insert("interrupts".to_owned(), count / seconds);
        }
        match self.workload {
            Workload::Stream => {
                let bytes = self.mark.bytes as f64;
                out.insert("throughput".to_owned(), bytes * 8.0 / seconds / 1e9);
                rivals::figures(&self.rivals, seconds, &mut out);
                if bytes > 0.0 {
                    self.cycles(tsc_hz, bytes, &mut out);
                }
            }
            Workload::Requests(_) => {
                let rate = self.mark.operations as f64 / seconds;
                out.insert("transactions".to_owned(), rate);
                let latency = [("p50", self.mark.p50_us), ("p99", self.mark.p99_us)];
                for (name, value) in latency {
                    if let Some(value) = value {
                        out.insert(format!("latency_us.{name}"), value);
                    }
                }
            }
        }
        for (name, sum) in &self.path.sums {
            if name.starts_with("drops.") {
                out.insert(name.clone(), *sum);
            }
        }
        out
    }

    fn cycles(&self, tsc_hz: u64, bytes: f64, out: &mut BTreeMap<String, f64>) {
        let packets = bytes / SEGMENT_BYTES;
        let per_ns = tsc_hz as f64 / 1e9;
        let mut total = 0.0;
        let mut put = |part: &str, cycles: f64| {
            out.insert(format!("cycles_per_byte.{part}"), cycles / bytes);
            out.insert(format!("cycles_per_packet.{part}"), cycles / packets);
        };
        for (part, ns) in &self.cpu_ns {
            let cycles = *ns as f64 * per_ns;
            // Cycles of rivals belong to other bytes, and devices in software represent hardware,
            // so no total includes them.
            if !is_rival(part) {
                total += cycles;
            }
            put(part, cycles);
        }
        let sender = self.cpu_ns.get("sender").copied().unwrap_or(0) as f64 * per_ns;
        put("total", total);
        put("receive_side", total - sender);
        // The total lacks at most the busy time outside all parts.
        let counted: u64 = self.cpu_ns.values().sum();
        let uncounted = self.busy_ns.saturating_sub(counted);
        put("uncounted", uncounted as f64 * per_ns);
        events::figures(&self.events, "packet", packets, out);
        ledgers::account(&self.path, packets, out);
        out.insert("lro_rate".to_owned(), lro_rate(&self.path));
        for (quantile, name) in [(0.5, "p50"), (0.99, "p99")] {
            if let Some(ns) = wait(&self.path, quantile) {
                out.insert(format!("flush_latency_us.{name}"), ns / 1e3);
            }
        }
        if let Some(ns) = mean_wait(&self.path) {
            out.insert("flush_latency_us.mean".to_owned(), ns / 1e3);
        }
        for (us, share) in within(&self.path) {
            out.insert(format!("flush_within_us.{us}"), share);
        }
        if self.mark.frames > 0 {
            let mean = self.mark.frame_bytes as f64 / self.mark.frames as f64;
            out.insert("frame_bytes".to_owned(), mean);
        }
        if let Some(anew) = self.path.sums.get("granted_anew") {
            out.insert("granted_anew".to_owned(), anew / packets);
        }
        self.acknowledgements(bytes, out);
    }
}

impl Window {
    /// Adds the segments delivered to the receiver's TCP, and its acknowledgements. If the path
    /// does not count acknowledgements, or also counts those of rivals, it uses all segments that
    /// the receiver sent.
    fn acknowledgements(&self, bytes: f64, out: &mut BTreeMap<String, f64>) {
        let alone = !self.cpu_ns.contains_key(RIVALS);
        let counted = |name: &str| self.path.sums.get(name).copied().filter(|_| alone);
        let segments = self.mark.segments as f64;
        let acks = counted("acks").unwrap_or(self.mark.sent_segments as f64);
        let each = [("segments", segments), ("acks", acks)];
        let sacks = counted("sacks").map(|sacks| ("sacks", sacks));
        let wire = ["wire_received", "wire_sent"];
        let wire = wire
            .into_iter()
            .filter_map(|name| Some((name, counted(name)?)));
        for (name, count) in each.into_iter().chain(sacks).chain(wire) {
            out.insert(name.to_owned(), count / (bytes / 1e9));
        }
        if acks > 0.0 {
            out.insert("segments_per_ack".to_owned(), segments / acks);
            if let Some((_, sacks)) = sacks {
                out.insert("sack_share".to_owned(), sacks / acks);
            }
        }
    }
}

/// Returns the number of TCP packets received per packet delivered. A domain may merge packets that
/// another domain has already merged. Without LRO every packet is delivered as received, so the
/// rate is 1.
fn lro_rate(path: &Reading) -> f64 {
    let rates = path.sums.iter().filter_map(|(name, aggregates)| {
        let part = name.strip_suffix(".lro.aggregates")?;
        let segments = path.sums.get(&format!("{part}.lro.segments"))?;
        (*aggregates > 0.0).then(|| segments / aggregates)
    });
    rates.product()
}

/// Returns the bucket, in nanoseconds, of a quantile of the waits of aggregates' first packets.
fn wait(path: &Reading, quantile: f64) -> Option<f64> {
    let mut classes: Vec<(f64, f64)> = waits(path).collect();
    classes.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = classes.iter().map(|class| class.1).sum();
    let mut below = 0.0;
    classes.into_iter().find_map(|(ns, count)| {
        below += count;
        (count > 0.0 && below >= quantile * all).then_some(ns)
    })
}

/// Returns the mean wait, nanoseconds.
fn mean_wait(path: &Reading) -> Option<f64> {
    let all: f64 = waits(path).map(|class| class.1).sum();
    let sum = path.sums.get("lro.wait_sum_ns")?;
    (all > 0.0).then(|| sum / all)
}

/// Returns the buckets of the waits of aggregates' first packets, each with its nanoseconds and
/// count.
fn waits(path: &Reading) -> impl Iterator<Item = (f64, f64)> {
    path.sums.iter().filter_map(|(name, count)| {
        let ns = name.strip_prefix("lro.waits.")?.parse().ok()?;
        Some((ns, *count))
    })
}

/// Returns, for each N, the share of aggregates whose first packet waited at most N microseconds.
fn within(path: &Reading) -> impl Iterator<Item = (u32, f64)> {
    let all: f64 = waits(path).map(|class| class.1).sum();
    let share = move |us: u32| {
        let fits = waits(path).filter(|(ns, _)| *ns <= f64::from(us) * 1e3);
        (us, fits.map(|class| class.1).sum::<f64>() / all)
    };
    WITHIN_US.into_iter().filter(move |_| all > 0.0).map(share)
}

/// Points of the cumulative distribution of waits.
const WITHIN_US: [u32; 11] = [1, 2, 5, 10, 20, 30, 50, 70, 100, 200, 1000];

/// Adds cycles per packet of each part, and their total.
pub fn per_packet(cycles: &BTreeMap<CpuPart, f64>, packets: f64, out: &mut BTreeMap<String, f64>) {
    if packets <= 0.0 {
        return;
    }
    let total: f64 = cycles.values().sum();
    let all = cycles.iter().map(|(part, cycles)| (*part, *cycles));
    for (part, cycles) in all.chain([("total", total)]) {
        out.insert(format!("cycles_per_packet.{part}"), cycles / packets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_known_stream() {
        let window = Window {
            workload: Workload::Stream,
            mark: Mark {
                ns: 2_000_000_000,
                bytes: 1_448_000_000,
                segments: 724_000,
                frames: 724_000,
                frame_bytes: 724_000 * 2066,
                ..Mark::default()
            },
            rivals: BTreeMap::new(),
            cpu_ns: [("sender", 1_000_000_000), ("driver", 500_000_000)].into(),
            path: Reading::of_sums(&[
                ("driver.hop.nic", 6e8),
                ("driver.hop.idle", 4e8),
                ("driver.cpu", 1e9),
                ("driver.corrected", 2.5e8),
                ("drops.no_buffer", 3.0),
                ("acks", 14_480.0),
                ("granted_anew", 50_000.0),
                ("lro.waits.1000", 50.0),
                ("lro.waits.20000", 49.0),
                ("lro.waits.300000", 1.0),
                ("lro.wait_sum_ns", 1_330_000.0),
            ]),
            busy_ns: 1_700_000_000,
            events: EventCounts::default(),
            disturbed: false,
        };
        let figures = window.figures(2_000_000_000);
        assert_eq!(figures["acks"], 10_000.0);
        assert_eq!(figures["segments"], 500_000.0);
        assert_eq!(figures["frame_bytes"], 2066.0);
        assert_eq!(figures["segments_per_ack"], 50.0);
        assert!(!figures.contains_key("sack_share"), "not counted");
        assert_eq!(figures["granted_anew"], 0.05);
        assert_eq!(figures["flush_latency_us.p50"], 1.0);
        assert_eq!(figures["flush_latency_us.p99"], 20.0);
        assert_eq!(figures["flush_latency_us.mean"], 13.3);
        let within = |us| figures[&format!("flush_within_us.{us}")];
        assert_eq!([1, 10, 20, 1000].map(within), [0.5, 0.5, 0.99, 1.0]);
        assert_eq!(figures["throughput"], 5.792);
        assert_eq!(figures["cycles_per_packet.sender"], 2000.0);
        assert_eq!(figures["cycles_per_packet.driver"], 1000.0);
        assert_eq!(figures["cycles_per_packet.total"], 3000.0);
        assert_eq!(figures["cycles_per_packet.receive_side"], 1000.0);
        assert_eq!(figures["cycles_per_packet.driver.hop.nic"], 600.0);
        assert_eq!(figures["cycles_per_packet.uncounted"], 400.0);
        assert_eq!(figures["closure.driver"], 1.25);
        assert_eq!(figures["corrected_share.driver"], 0.2);
        assert_eq!(figures["drops.no_buffer"], 3.0);
        assert_eq!(figures["lro_rate"], 1.0);
        assert!(!figures.contains_key("transactions"));
    }

    #[test]
    fn all_loads_stop_although_one_fails() {
        let done = std::cell::RefCell::new(Vec::new());
        let act = |n: u32| {
            done.borrow_mut().push(n);
            anyhow::ensure!(n % 2 == 1, "{n} has exited");
            Ok(())
        };
        let error = each(1..=5, act).unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), done.take()),
            ("2 has exited", vec![1, 2, 3, 4, 5])
        );
        assert!(each([1, 3].into_iter(), act).is_ok());
    }

    /// The driver domain also counts acknowledgements of rivals, so the receiver's TCP counters
    /// must be used.
    #[test]
    fn acks_with_rivals_are_counted_by_the_receiver() {
        let window = |rivals: bool| Window {
            workload: Workload::Stream,
            mark: Mark {
                ns: 1_000_000_000,
                bytes: 1_000_000_000,
                segments: 300,
                sent_segments: 100,
                ..Mark::default()
            },
            rivals: BTreeMap::new(),
            cpu_ns: rivals.then_some((RIVALS, 5)).into_iter().collect(),
            path: Reading::of_sums(&[("acks", 900.0), ("sacks", 90.0), ("wire_sent", 950.0)]),
            busy_ns: 0,
            events: EventCounts::default(),
            disturbed: false,
        };
        let (alone, with_rivals) = (window(false).figures(1), window(true).figures(1));
        assert_eq!(
            (alone["acks"], alone["segments_per_ack"]),
            (900.0, 300.0 / 900.0)
        );
        assert_eq!((alone["sacks"], alone["sack_share"]), (90.0, 0.1));
        assert_eq!(alone["wire_sent"], 950.0);
        assert_eq!(
            (with_rivals["acks"], with_rivals["segments_per_ack"]),
            (100.0, 3.0)
        );
        assert!(!with_rivals.contains_key("sacks") && !with_rivals.contains_key("sack_share"));
    }

    #[test]
    fn lro_rates_of_two_domains_multiply() {
        let rate = |pairs: &[(&str, f64)]| lro_rate(&Reading::of_sums(pairs));
        let driver = [
            ("driver.lro.segments", 400.0),
            ("driver.lro.aggregates", 20.0),
        ];
        let guest = [("guest.lro.segments", 20.0), ("guest.lro.aggregates", 10.0)];
        assert_eq!(rate(&[]), 1.0);
        assert_eq!(rate(&driver), 20.0);
        assert_eq!(rate(&guest), 2.0);
        assert_eq!(rate(&[driver, guest].concat()), 40.0);
        let off = [("guest.lro.segments", 0.0), ("guest.lro.aggregates", 0.0)];
        assert_eq!(rate(&[driver, off].concat()), 20.0);
    }

    #[test]
    fn figures_of_known_requests() {
        let window = Window {
            workload: Workload::Requests(1),
            mark: Mark {
                ns: 500_000_000,
                operations: 5000,
                p50_us: Some(90.0),
                ..Mark::default()
            },
            rivals: BTreeMap::new(),
            cpu_ns: BTreeMap::new(),
            busy_ns: 0,
            events: EventCounts::default(),
            path: Reading::default(),
            disturbed: false,
        };
        let figures = window.figures(1);
        assert_eq!(figures["transactions"], 10_000.0);
        assert_eq!(figures["latency_us.p50"], 90.0);
        assert!(!figures.contains_key("latency_us.p99") && !figures.contains_key("throughput"));
    }
}
