//! Comparison of flush policies by their losses at each load and over all loads.
//!
//! A *family* consists of columns that differ only in the last word of their LRO. All have the same
//! machine, NIC, wires and interrupt moderation, so that no effect of ticks on a path is attributed
//! to a policy. At each load (wire speed, request size) every member of a family is compared with
//! the best one. The *regret* of a member is the sum over all loads of (best − own) / best. At a
//! wire speed, a member is *dominated* by another one that is better in one figure and worse in
//! none, each beyond the interval.

use crate::plan::{
    Column, ColumnConfig, IdleState, LroColumn, PayloadDirection, Plan, PollMode, Topology,
    WireSpeed, Workload,
};
use crate::runner::Samples;
use figures::metric;
use figures::report::{Figure, Index, cell};
use figures::stats::{self, ThresholdSide};
use figures::table::table;

/// Returns the metrics by which policies are compared, each with its workload.
fn criteria(plan: &Plan) -> Vec<(&'static str, Workload)> {
    let requests = plan.requests.iter().map(|&size| Workload::Requests(size));
    [
        ("throughput", Workload::Stream),
        ("cycles_per_byte.total", Workload::Stream),
    ]
    .into_iter()
    .chain(requests.map(|workload| ("transactions", workload)))
    .collect()
}

/// A column of a family, with its moderation and its policy.
struct Member<'a> {
    column: &'a Column,
    moderation: PollMode,
    flush: &'a str,
}

/// Returns the plan's families with more than one member.
fn families(plan: &Plan) -> Vec<Vec<Member<'_>>> {
    let mut found: Vec<(_, Vec<Member<'_>>)> = Vec::new();
    for column in &plan.column {
        let Some(LroColumn::At {
            at,
            buffers,
            backend,
            flush,
        }) = &column.lro
        else {
            continue;
        };
        for &moderation in &column.moderation {
            let (nic, wire, machine) = (column.nic, &column.wire, column.machine);
            let family = (at, buffers, backend, moderation, nic, wire, machine);
            let member = Member {
                column,
                moderation,
                flush,
            };
            match found.iter_mut().find(|(known, _)| *known == family) {
                Some((_, members)) => members.push(member),
                None => found.push((family, vec![member])),
            }
        }
    }
    found
        .into_iter()
        .map(|(_, members)| members)
        .filter(|members| members.len() > 1)
        .collect()
}

/// Returns 1 if more of a metric is better, -1 if less is better.
fn sign(metric: &str) -> f64 {
    match metric::better(metric) {
        ThresholdSide::Above => 1.0,
        ThresholdSide::Below => -1.0,
    }
}

/// Returns the regret of every member, and at each wire speed the number of members that dominate
/// it (`dominated`).
#[must_use]
pub(super) fn figures(plan: &Plan, samples: &Samples) -> Vec<Figure> {
    let mut out = Vec::new();
    let (Some(&direction), Some(&wake)) = (plan.direction.first(), plan.wake.first()) else {
        return out;
    };
    let comparison = Comparison {
        plan,
        samples,
        direction,
        wake,
    };
    for family in families(plan) {
        for member in &family {
            let mut regret: Vec<f64> = Vec::new();
            for wire in plan.wires(member.column) {
                for (metric, workload) in criteria(plan) {
                    add(
                        &mut regret,
                        &comparison.losses(metric, &family, member, wire, workload),
                    );
                }
                let by: Vec<&str> = family
                    .iter()
                    .filter(|other| other.column.name != member.column.name)
                    .filter(|other| comparison.dominates(other, member, wire))
                    .map(|other| other.flush)
                    .collect();
                let name = comparison.place(member, wire, Workload::Stream).name();
                let count = by.len() as f64;
                let mut figure = Figure::single(&plan.name, &name, "dominated", count);
                figure.note = (!by.is_empty()).then(|| format!("by {}", by.join(", ")));
                out.push(figure);
            }
            if let Some(estimate) = stats::estimate(&regret) {
                let name = everywhere(plan, member);
                out.push(Figure::new(&plan.name, &name, "regret", estimate));
            }
        }
    }
    out
}

/// Returns tables that list each policy of a family with its regret and the policies that dominate
/// it at each wire speed.
#[must_use]
pub(super) fn tables(plan: &Plan, index: &Index<'_>) -> String {
    let (Some(&direction), Some(&wake)) = (plan.direction.first(), plan.wake.first()) else {
        return String::new();
    };
    let mut out = String::new();
    for family in families(plan) {
        // All members have the same wires.
        let wires = family
            .first()
            .map_or(&[][..], |first| plan.wires(first.column));
        let mut header = vec!["flush policies".to_owned(), "regret".to_owned()];
        header.extend(wires.iter().map(|wire| format!("{}, dominated", wire.name)));
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let rows: Vec<Vec<String>> = family
            .iter()
            .map(|member| {
                let name = everywhere(plan, member);
                let regret = cell(index.get(&name, "regret"));
                let mut row = vec![name, regret];
                row.extend(wires.iter().map(|wire| {
                    let name = place(plan, member, wire, Workload::Stream, direction, wake).name();
                    let dominated = index.get(&name, "dominated");
                    dominated.map_or("–".to_owned(), |figure| {
                        figure.note.clone().unwrap_or("no".to_owned())
                    })
                }));
                row
            })
            .collect();
        out.push_str(&table(&header, &rows));
        out.push_str("\n\n");
    }
    out
}

/// Returns the configuration under which a figure of a member is stored.
fn place(
    plan: &Plan,
    member: &Member<'_>,
    wire: &WireSpeed,
    workload: Workload,
    direction: PayloadDirection,
    wake: IdleState,
) -> ColumnConfig {
    let place = member.column.place.first().copied();
    let point = plan.point(
        member.column,
        place,
        wire,
        member.moderation,
        Topology::default(),
    );
    plan.with_workload(&point, workload, direction, wake)
}

/// Returns the configuration name of a member's figures over all wires and loads.
fn everywhere(plan: &Plan, member: &Member<'_>) -> String {
    let wire = WireSpeed::unbounded();
    let mut config = plan.point(
        member.column,
        None,
        &wire,
        member.moderation,
        Topology::default(),
    );
    config.keys.remove("wire");
    config.name()
}

/// A plan's samples, compared in the plan's first direction and with its first idle state.
struct Comparison<'a> {
    plan: &'a Plan,
    samples: &'a Samples,
    direction: PayloadDirection,
    wake: IdleState,
}

impl Comparison<'_> {
    fn place(&self, member: &Member<'_>, wire: &WireSpeed, workload: Workload) -> ColumnConfig {
        place(self.plan, member, wire, workload, self.direction, self.wake)
    }

    /// Returns the amount by which each round of `own` was better (> 0) or worse (< 0) than
    /// `other`, as a share of `other`.
    fn gains(&self, metric: &str, own: &ColumnConfig, other: &ColumnConfig) -> Vec<f64> {
        let series = |config| {
            self.samples
                .series(config, metric)
                .map_or(&[][..], Vec::as_slice)
        };
        stats::ratios(series(own), series(other))
            .into_iter()
            .map(|ratio| sign(metric) * (ratio - 1.0))
            .collect()
    }

    /// Returns a member's loss against the best of its family at one load, round by round.
    fn losses(
        &self,
        metric: &str,
        family: &[Member<'_>],
        member: &Member<'_>,
        wire: &WireSpeed,
        workload: Workload,
    ) -> Vec<f64> {
        let median = |config: ColumnConfig| {
            let series = self.samples.series(&config, metric)?;
            let values: Vec<f64> = series.iter().flatten().copied().collect();
            Some((config, sign(metric) * stats::median(&values)))
        };
        let best = family
            .iter()
            .filter_map(|other| median(self.place(other, wire, workload)))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((best, _)) = best else {
            return Vec::new();
        };
        let own = self.place(member, wire, workload);
        let gains = self.gains(metric, &own, &best);
        gains.into_iter().map(|gain| -gain).collect()
    }

    /// Returns whether `other` is better than `own` in one figure at this wire speed, and worse in
    /// none.
    fn dominates(&self, other: &Member<'_>, own: &Member<'_>, wire: &WireSpeed) -> bool {
        let mut better = false;
        for (metric, workload) in criteria(self.plan) {
            let (theirs, ours) = (
                self.place(other, wire, workload),
                self.place(own, wire, workload),
            );
            let Some(gain) = stats::estimate(&self.gains(metric, &theirs, &ours)) else {
                return false;
            };
            if gain.hi < 0.0 {
                return false;
            }
            better |= gain.lo > 0.0 && gain.n > 1;
        }
        better
    }
}

/// Adds `more` to `sums`, round by round.
fn add(sums: &mut Vec<f64>, more: &[f64]) {
    if sums.len() < more.len() {
        sums.resize(more.len(), 0.0);
    }
    for (sum, value) in sums.iter_mut().zip(more) {
        *sum += value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PLAN: &str = r#"
        name = "lro"
        about = "three policies"
        requests = [1]
        direction = ["to_guest"]
        wake = ["awake"]
        wire = ["1", "unbounded"]
        full = { rounds = 3, warm_up_s = 0.1, window_s = 0.1 }
        quick = { rounds = 3, warm_up_s = 0.1, window_s = 0.1 }
        [[column]]
        name = "physical-skb-scatter-poll"
        path = "machine"
        place = ["one-core"]
        lro = "physical-skb-scatter-poll"
        [[column]]
        name = "physical-skb-scatter-t50"
        path = "machine"
        place = ["one-core"]
        lro = "physical-skb-scatter-t50"
        [[column]]
        name = "physical-page-scatter-t50"
        path = "machine"
        place = ["one-core"]
        lro = "physical-page-scatter-t50"
    "#;

    /// Returns the plan in which only one policy is also measured with ticks.
    fn with_ticks() -> Plan {
        let events = "name = \"physical-skb-scatter-t50\"";
        let both = format!("{events}\nmoderation = [\"event\", \"tick50\"]");
        Plan::parse(&PLAN.replace(events, &both)).unwrap()
    }

    #[test]
    fn policies_are_compared_at_one_moderation() {
        let plan = with_ticks();
        let all: Vec<Vec<String>> = families(&plan)
            .iter()
            .map(|members| members.iter().map(|m| everywhere(&plan, m)).collect())
            .collect();
        let poll = "physical-skb-scatter-poll".to_owned();
        let t50 = "physical-skb-scatter-t50".to_owned();
        assert_eq!(all, [[poll, t50]]);
        let ticks = Member {
            column: &plan.column[1],
            moderation: PollMode::Tick(50),
            flush: "t50",
        };
        let name = "physical-skb-scatter-t50@moderation=tick50";
        assert_eq!(everywhere(&plan, &ticks), name);
    }

    #[test]
    fn policies_are_compared_on_one_nic_at_its_speeds() {
        let soft = "name = \"physical-skb-scatter-t50\"\nnic = \"soft\"\nwire = [\"1\"]";
        let two = PLAN.replace("name = \"physical-skb-scatter-t50\"", soft);
        assert!(families(&Plan::parse(&two).unwrap()).is_empty());
        let poll = soft.replace("t50", "poll");
        let both = two.replace("name = \"physical-skb-scatter-poll\"", &poll);
        let plan = Plan::parse(&both).unwrap();
        let text = tables(&plan, &Index::new(&figures(&plan, &samples(100.0))));
        assert!(text.contains("1, dominated"), "{text}");
        assert!(!text.contains("unbounded, dominated"), "{text}");
    }

    fn samples(t50_requests: f64) -> Samples {
        let mut samples = Samples::default();
        for wire in ["1", "unbounded"] {
            for (column, throughput, cycles, requests) in [
                ("physical-skb-scatter-poll", 4.0, 5.0, 100.0),
                ("physical-skb-scatter-t50", 5.0, 4.0, t50_requests),
            ] {
                let config = ColumnConfig::new(column, &[("wire", wire)]);
                for round in 0..3 {
                    let figures = BTreeMap::from([
                        ("throughput".to_owned(), throughput),
                        ("cycles_per_byte.total".to_owned(), cycles),
                        ("transactions".to_owned(), requests),
                    ]);
                    samples.add(&config, round, &figures);
                }
            }
        }
        samples
    }

    fn value(figures: &[Figure], config: &str, metric: &str) -> f64 {
        let found = figures
            .iter()
            .find(|f| f.config == config && f.metric == metric);
        found.and_then(|f| f.value).unwrap()
    }

    #[test]
    fn a_policy_better_in_all_dominates() {
        let plan = Plan::parse(PLAN).unwrap();
        let figures = figures(&plan, &samples(100.0));
        let poll = "physical-skb-scatter-poll@wire=1";
        assert_eq!(value(&figures, poll, "dominated"), 1.0);
        let t50 = "physical-skb-scatter-t50@wire=1";
        assert_eq!(value(&figures, t50, "dominated"), 0.0);
        // The loss is a fifth of the throughput and a quarter of the cycles at both wires.
        let regret = value(&figures, "physical-skb-scatter-poll", "regret");
        assert!((regret - 2.0 * (0.2 + 0.25)).abs() < 1e-9, "{regret}");
        assert_eq!(value(&figures, "physical-skb-scatter-t50", "regret"), 0.0);
        let text = tables(&plan, &Index::new(&figures));
        assert!(text.contains("by t50"), "{text}");
        assert!(text.contains("unbounded, dominated"), "{text}");
        assert!(
            figures.iter().all(|f| !f.config.contains("page")),
            "a single policy is not a family"
        );
    }

    #[test]
    fn a_policy_worse_in_one_figure_does_not_dominate() {
        let plan = Plan::parse(PLAN).unwrap();
        let figures = figures(&plan, &samples(50.0));
        for column in ["physical-skb-scatter-poll", "physical-skb-scatter-t50"] {
            let config = format!("{column}@wire=unbounded");
            assert_eq!(value(&figures, &config, "dominated"), 0.0);
        }
        let regret = value(&figures, "physical-skb-scatter-t50", "regret");
        assert!((regret - 2.0 * 0.5).abs() < 1e-9, "{regret}");
    }
}
