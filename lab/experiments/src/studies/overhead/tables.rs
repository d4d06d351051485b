//! The figures of `prof-overhead` as text.

use super::plan::{Activity, OverheadPlan, config};
use figures::report::{Figure, Index, cell};
use figures::table::table;

/// Returns the figures as text.
pub(super) fn tables(plan: &OverheadPlan, figures: &[Figure]) -> String {
    let index = Index::new(figures);
    let mut out = String::new();
    let calibrated = |metric| cell(index.get("calibration", metric));
    out.push_str(&format!(
        "a sample costs {} ns (call stack of {}); of that a timer's interrupt, for any \
         profiler, {} ns\n\n",
        calibrated("cost_ns.sample"),
        calibrated("frames.sample"),
        calibrated("cost_ns.interrupt"),
    ));
    for &place in &plan.place {
        for &direction in &plan.direction {
            let [bare, timers, profiled] =
                Activity::ALL.map(|activity| config(activity, place, direction).name());
            let bound = |config: &str, metric: &str| {
                index
                    .get(config, metric)
                    .and_then(|figure| Some((figure.value?, figure.hi?)))
                    .map_or_else(
                        || "–".to_owned(),
                        |(value, hi)| format!("{:.2} (≤ {:.2})", value * 100.0, hi * 100.0),
                    )
            };
            let percent = |metric: &str| bound(&profiled, metric);
            let rows: Vec<Vec<String>> = ["wire", "guest"]
                .iter()
                .map(|core| {
                    let of = |metric: &str| format!("{metric}.{core}");
                    vec![
                        format!("core of the {core}"),
                        cell(index.get(&profiled, &of("rate.samples"))),
                        cell(index.get(&profiled, &of("rate.stamps"))),
                        percent(&of("overhead.samples")),
                        percent(&of("overhead.stamps")),
                        percent(&of("overhead.cpu")),
                        cell(index.get(&profiled, &of("rate.within_bar"))),
                    ]
                })
                .collect();
            let header = [
                profiled.as_str(),
                "samples/s",
                "stamps/s",
                "samples %",
                "stamps %",
                "together %",
                "samples/s within the bar",
            ];
            out.push_str(&table(&header, &rows));
            out.push_str(&format!(
                "\n\na stamp: {} ns, a read of the CPU clock: {} ns\n\
                 the profiler itself: {} % of one CPU\n\
                 throughput: {} Gb/s, with bare timers {} Gb/s, profiled {} Gb/s\n\
                 median loss of {} pairs: {} %; by the timers alone {} %, by sampling \
                 against timers {} %\n\n",
                cell(index.get(&profiled, "cost_ns.stamp")),
                cell(index.get(&profiled, "cost_ns.clock")),
                percent("overhead.profiler"),
                cell(index.get(&bare, "throughput")),
                cell(index.get(&timers, "throughput")),
                cell(index.get(&profiled, "throughput")),
                index
                    .get(&profiled, "loss.throughput")
                    .map_or(0, |figure| figure.n),
                percent("loss.throughput"),
                bound(&timers, "loss.timers"),
                percent("loss.sampling"),
            ));
        }
    }
    out
}
