//! The sampler alone, or its timers alone, as a helper process of experiments: everything that runs
//! while a session is recorded, without set-up and processing. Lines on standard input start and
//! stop it, so that windows with and without it can alternate.

use super::timers::Interrupts;
use super::{RecordOptions, Watcher, calibrate, collect::Collector, open};
use crate::host::cpus::{online_cpus, raw_ns};
use crate::host::watch::{InstanceScope, Watch};
use crate::sampler::parse::RecordKind;
use figures::helper;
use figures::measure;
use figures::sampler::{SampleCounts, SamplerSpec};
use serde_json::json;

struct BareSession {
    watcher: Watcher,
    collector: Collector,
    start_ns: u64,
    cpu_ns: u64,
}

impl BareSession {
    fn start(hz: u32) -> anyhow::Result<Self> {
        let options = RecordOptions {
            hz: Some(hz),
            ..RecordOptions::default()
        };
        let (sampler, _) = open(&options)?;
        let watcher = Watcher::start(Watch::new(Vec::new(), InstanceScope::All));
        let cpu_ns = measure::own_cpu_ns();
        let start_ns = raw_ns();
        let collector = Collector::start(sampler, None)?;
        Ok(Self {
            watcher,
            collector,
            start_ns,
            cpu_ns,
        })
    }

    fn stop(self) -> SampleCounts {
        let end_ns = raw_ns();
        // The CPU time is read before the records are sorted, because a session sorts them after
        // the load has ended.
        let cpu_ns = measure::own_cpu_ns().saturating_sub(self.cpu_ns);
        let collected = self.collector.stop(self.start_ns..=end_ns);
        drop(self.watcher.stop());
        let mut counts = SampleCounts {
            ran_ns: end_ns.saturating_sub(self.start_ns),
            cpu_ns,
            ..SampleCounts::default()
        };
        for record in &collected.records {
            match &record.kind {
                RecordKind::Sample { chain, .. } => {
                    *counts.samples.entry(record.cpu).or_default() += 1;
                    counts.frames += chain.len() as u64;
                }
                RecordKind::Lost(lost) => counts.lost += lost,
                _ => {}
            }
        }
        counts
    }
}

/// Runs the helper. It answers `start`, `stop` and `calibrate`, and exits at the end of standard
/// input.
///
/// # Errors
/// Returns an error if the argument is invalid, or this user may not sample.
pub fn main(args: &[String]) -> anyhow::Result<()> {
    helper::report(serve(args))
}

fn serve(args: &[String]) -> anyhow::Result<()> {
    let spec: SamplerSpec = helper::parse(args.first().map_or("null", String::as_str))?;
    // Fail immediately if sampling is impossible.
    drop(BareSession::start(spec.hz)?.stop());
    helper::reply(&json!({"ready": true}));
    let mut running = None;
    let mut timers = Interrupts::open(spec.hz.into(), &online_cpus())?;
    helper::serve(|line| {
        let done = match line {
            "start" => BareSession::start(spec.hz).map(|now| {
                running = Some(now);
                json!({})
            }),
            "timers" => timers.start().map(|()| json!({})),
            "stop" => timers.stop().and_then(|_| {
                let counts = running.take().map(BareSession::stop).unwrap_or_default();
                Ok(serde_json::to_value(counts)?)
            }),
            _ => calibrate::measure(spec.cpu).and_then(|costs| Ok(serde_json::to_value(costs)?)),
        };
        Some(done.unwrap_or_else(|error| json!({ "error": format!("{error:#}") })))
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use figures::{Failure, exit_code};

    #[test]
    fn counts_cover_start_to_stop() {
        let running = match BareSession::start(500) {
            Ok(running) => running,
            Err(error) => {
                assert_eq!(exit_code(&error), 3, "{error}");
                assert!(error.downcast_ref::<Failure>().is_some());
                return testing::skip(error);
            }
        };
        // This time suffices for some samples even if the underlying hypervisor steals time.
        std::thread::sleep(std::time::Duration::from_secs(3));
        let counts = running.stop();
        assert!(counts.ran_ns >= 3_000_000_000);
        assert!(counts.samples.values().sum::<u64>() >= 50, "{counts:?}");
        assert!(counts.cpu_ns > 0);
    }
}
