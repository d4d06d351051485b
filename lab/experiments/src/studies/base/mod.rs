//! Plans of the same form as `base`: lanes side by side, raw frames, start-up times.
//!
//! | module | contents |
//! |---|---|
//! | `run`, `lanes` | windows on the lanes of all columns, round by round |
//! | `thesis` | cycle accounting of Ram's thesis |
//! | `acks` | acknowledgements, and their marginal cost |
//! | `points` | points of curves as text |
//! | `frontier` | comparison of flush policies |
//! | [`papers`] | the plans of all papers, and one page for them |
//! | `tables`, `vm_tables`, `rows` | the figures as text |

mod acks;
mod frontier;
mod lanes;
pub mod papers;
mod points;
mod rows;
mod run;
mod tables;
mod thesis;
mod vm_tables;

use super::{Study, StudyOutcome};
use crate::html::{self, Flames};
use crate::idle_cores;
use crate::lane::cores::Cores;
use crate::papers::Paper;
use crate::plan::{Adjustment, IdleState, Plan};
use crate::runner::{ReproducedConfig, ReproducedConfigs};
use figures::Failure;
use figures::provenance::Provenance;
use figures::report::{self, Figure};
use run::Run;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use xenoprof::count;

/// Names and texts of the plans of this form.
pub const PLANS: [(&str, &str); 20] = [
    ("base", include_str!("../../../plans/base.toml")),
    ("lro", include_str!("../../../plans/lro.toml")),
    ("peers", include_str!("../../../plans/peers.toml")),
    ("vm", include_str!("../../../plans/vm.toml")),
    ("tcp", include_str!("../../../plans/tcp.toml")),
    ("isolation", include_str!("../../../plans/isolation.toml")),
    ("small", include_str!("../../../plans/small.toml")),
    ("scale", include_str!("../../../plans/scale.toml")),
    ("thesis", include_str!("../../../plans/thesis.toml")),
    ("pool", include_str!("../../../plans/pool.toml")),
    ("workers", include_str!("../../../plans/workers.toml")),
    ("messages", include_str!("../../../plans/messages.toml")),
    ("hatori", include_str!("../../../plans/hatori.toml")),
    ("acks", include_str!("../../../plans/acks.toml")),
    (
        "consolidation",
        include_str!("../../../plans/consolidation.toml"),
    ),
    ("sccp", include_str!("../../../plans/sccp.toml")),
    ("oi", include_str!("../../../plans/oi.toml")),
    ("delayed", include_str!("../../../plans/delayed.toml")),
    ("ram", include_str!("../../../plans/ram.toml")),
    ("menon", include_str!("../../../plans/menon.toml")),
];

/// A plan of this form.
#[derive(Debug)]
pub struct Base(Plan);

impl Base {
    /// Opens the plan in `text`.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if the plan is invalid before or after `by` is applied.
    pub fn open(text: &str, by: &Adjustment) -> Result<Box<dyn Study>, Failure> {
        Ok(Box::new(Self::of(text, by)?))
    }

    fn of(text: &str, by: &Adjustment) -> Result<Self, Failure> {
        let plan = Plan::parse(text)?.adjusted(by)?;
        check_paper(&plan)?;
        Ok(Self(plan))
    }

    /// Returns the provenance of the plan's figures.
    fn provenance(&self, awake: &Result<(), Failure>) -> Provenance {
        let (plan, cores) = (&self.0, Cores::choose());
        let has_vm = plan.column.iter().any(|column| column.path.has_vm());
        let mut placement = if has_vm {
            format!(
                "virtual machine with TCP on core {}, all else on core {}; frames: virtual \
                 machines on core {}, all else on core {}",
                cores.guest, cores.wire, cores.wire, cores.guest
            )
        } else if plan.column.is_empty() {
            format!(
                "guests on core {}, driver on core {}",
                cores.wire, cores.guest
            )
        } else {
            format!(
                "wire on core {}, guest on core {}; driver on the guest's (one-core) or the \
                 wire's (split)",
                cores.wire, cores.guest
            )
        };
        match awake {
            _ if !plan.wake.contains(&IdleState::Awake) => placement.push_str("; cores may halt"),
            Err(why) => placement.push_str(&format!("; cores may halt: {why}")),
            Ok(()) => {}
        }
        let times = plan.full;
        placement.push_str(&format!(
            "; {} rounds of {} s",
            times.rounds, times.window_s
        ));
        let mut provenance = Provenance::collect(placement, times.is_short());
        if !count::possible().is_empty() {
            provenance.pmu = "cycles: CPU time x TSC rate; other events: performance counters";
        }
        provenance
    }

    /// Returns the complete outcome that an earlier run of the same plan on the same machine saved
    /// in a folder.
    fn saved_outcome(&self, folder: &Path) -> Option<StudyOutcome> {
        let plan = &self.0;
        let (from, figures) = report::load(folder, &plan.name).ok()?;
        let provenance = self.provenance(&idle_cores::possible());
        let same = |key: &str, own: &str| from.get(key).and_then(Value::as_str) == Some(own);
        let here = same("commit", &provenance.commit)
            && same("kernel", &provenance.kernel)
            && same("cpu", &provenance.cpu)
            && same("placement", &provenance.placement)
            && from.get("quick") == Some(&Value::Bool(provenance.quick));
        let rounds = |figure: &Figure| figure.n == 0 || figure.n == plan.full.rounds;
        let column = |figure: &Figure| figure.config.split('@').next().map(str::to_owned);
        let found: BTreeSet<String> = figures.iter().filter_map(column).collect();
        let columns = plan.column.iter().map(|column| column.name.clone());
        let files = plan.file.iter().map(|file| file.name.clone());
        let wanted: BTreeSet<String> = columns.chain(files).collect();
        let of_streams = |figure: &&Figure| figure.metric == "throughput";
        let whole = found == wanted && figures.iter().filter(of_streams).all(rounds);
        (here && whole).then_some(StudyOutcome {
            provenance,
            figures,
        })
    }
}

/// Checks that the plan's paper has every configuration that a column reproduces.
fn check_paper(plan: &Plan) -> Result<(), Failure> {
    let paper = plan.paper.as_deref().map(Paper::find).transpose()?;
    for (column, ReproducedConfig { config, .. }) in reproduced(plan) {
        if paper
            .as_ref()
            .is_none_or(|paper| paper.config(config).is_none())
        {
            let why = format!("column `{column}`: no configuration `{config}` in a paper");
            return Err(Failure::Usage(why));
        }
    }
    Ok(())
}

/// Returns the paper's configuration that each column of a plan reproduces.
fn reproduced(plan: &Plan) -> ReproducedConfigs<'_> {
    let columns = plan.column.iter().filter_map(|column| {
        let (config, nic) = (column.paper.as_deref()?, column.nic);
        Some((column.name.as_str(), ReproducedConfig { config, nic }))
    });
    let files = plan.file.iter().filter_map(|file| {
        let config = file.paper.as_deref()?;
        Some((file.name.as_str(), ReproducedConfig::usual(config)))
    });
    columns.chain(files).collect()
}

impl Study for Base {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn about(&self) -> &str {
        &self.0.about
    }

    fn run(&self, _folder: Option<&Path>) -> anyhow::Result<StudyOutcome> {
        let plan = &self.0;
        let (cores, awake) = (Cores::choose(), idle_cores::possible());
        let provenance = self.provenance(&awake);
        let samples = Run::new(plan, cores, provenance.tsc_hz, awake).measure()?;
        let mut figures = samples.figures_with_verdicts(&plan.name, &plan.ratio, &plan.threshold);
        if let Some(paper) = plan.paper.as_deref().map(Paper::find).transpose()? {
            figures.extend(samples.paper_comparisons(&plan.name, &paper, &reproduced(plan)));
        }
        figures.extend(frontier::figures(plan, &samples));
        figures.extend(acks::figures(plan, &samples));
        Ok(StudyOutcome {
            provenance,
            figures,
        })
    }

    fn page(&self, ran: &StudyOutcome, flames: &Flames) -> anyhow::Result<Option<String>> {
        let plan = &self.0;
        let Some(paper) = plan.paper.as_deref().map(Paper::find).transpose()? else {
            return Ok(None);
        };
        let part = html::PaperPart {
            paper: &paper,
            reproduced: &reproduced(plan),
            figures: &ran.figures,
            window_s: plan.full.window_s,
        };
        Ok(Some(html::page(&ran.provenance, &[part], flames)))
    }

    fn tables(&self, figures: &[Figure]) -> String {
        tables::tables(&self.0, figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::Question;
    use crate::plan::{Column, LroColumn, Ratio, WireNic, WireOffload};
    use config::domain::GrantMode;
    use figures::stats::ComparisonVerdict;
    use std::collections::BTreeMap;

    fn plan(name: &str) -> Plan {
        let found = PLANS.iter().find(|(known, _)| *known == name);
        Plan::parse(found.unwrap().1).unwrap()
    }

    #[test]
    fn embedded_plans_are_valid_and_named_as_their_file() {
        for (name, text) in PLANS {
            let plan = Plan::parse(text).unwrap();
            assert_eq!(plan.name, *name);
            assert!(!plan.full.is_short(), "{name}: its figures are results");
            assert!(plan.quick.is_short(), "{name}");
        }
    }

    #[test]
    fn base_has_the_columns_that_scripts_know() {
        let plan = plan("base");
        let columns: Vec<&str> = plan.column.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(
            columns,
            [
                "grantway",
                "grantway-tso",
                "grantway-apart",
                "grantway-napi-apart",
                "grantway-xdp-apart",
                "grantway-xdp-rps",
                "forwarder",
                "bridge-gro-off",
                "bridge-gro-rps",
                "bridge-gro-on",
                "bridge-gro-napi",
                "bridge-gro-in",
                "bridge-gro-in-napi",
                "bridge-gro-in-napi-tso",
                "veth-gro-off",
                "veth-gro-on",
                "veth-gro-napi"
            ]
        );
        let frames: Vec<&str> = plan.frames.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(frames, ["frames-map", "frames-mapped"]);
    }

    /// A ratio of columns whose wires carry different frames would have no meaning.
    #[test]
    fn base_compares_columns_with_equal_wires() {
        let plan = plan("base");
        let whole = |name: &str| {
            let column = plan.column.iter().find(|column| column.name == name);
            column.unwrap().offload == WireOffload::Segments
        };
        for ratio in &plan.ratio {
            assert_eq!(whole(&ratio.own), whole(&ratio.to), "{ratio:?}");
        }
        let offloaded = plan
            .column
            .iter()
            .filter(|column| column.offload == WireOffload::Segments);
        let offloaded: Vec<&str> = offloaded.map(|column| column.name.as_str()).collect();
        assert_eq!(offloaded, ["grantway-tso", "bridge-gro-in-napi-tso"]);
    }

    /// Columns without payload access cannot be the reference for columns with it.
    #[test]
    fn peers_compares_columns_with_equal_touch() {
        let plan = plan("peers");
        let frames = plan.frames.iter().map(|f| (f.name.as_str(), f.touch));
        let peers = plan.peer.iter().map(|p| (p.name.as_str(), p.touch));
        let touch: BTreeMap<&str, bool> = frames.chain(peers).collect();
        for ratio in &plan.ratio {
            let sides = [&ratio.own, &ratio.to].map(|side| touch[side.as_str()]);
            assert_eq!(sides[0], sides[1], "{ratio:?}");
        }
        for peer in ["memif", "vhost", "ovs-dpdk"] {
            let touched = |r: &&Ratio| r.own == "ngm-touched" && r.to == format!("{peer}-touched");
            assert!(plan.ratio.iter().any(|ratio| touched(&ratio)), "{peer}");
        }
    }

    #[test]
    fn papers_with_own_nics_have_columns_on_soft() {
        for (name, columns, links, interrupt_us) in [
            (
                "oi",
                &["linux", "xen", "lro", "bo", "da"][..],
                &["0.5", "1"][..],
                33,
            ),
            (
                "hatori",
                &["guest1", "guest2", "guest3"],
                &["1", "unbounded"],
                0,
            ),
            (
                "menon",
                &["domain0", "guest0", "guest1", "send-domain0", "send-guest0"],
                &["1"],
                125,
            ),
        ] {
            let plan = plan(name);
            let soft = |column: &&Column| column.nic == WireNic::Soft && column.paper.is_some();
            let found: Vec<&Column> = plan.column.iter().filter(soft).collect();
            let names: Vec<&str> = found.iter().map(|c| c.name.as_str()).collect();
            let wanted: Vec<_> = columns.iter().map(|c| format!("{name}-soft-{c}")).collect();
            assert_eq!(names, wanted);
            for column in found {
                let wires: Vec<&str> = column.wire.iter().map(|w| w.name.as_str()).collect();
                let machine = column.machine;
                assert_eq!(wires, links, "{}", column.name);
                assert_eq!(
                    (machine.wire_queue, machine.interrupt_us),
                    (Some(256), interrupt_us),
                    "{}",
                    column.name
                );
                // All other keys equal those of the column without the device.
                let usual = column.name.replace("-soft", "");
                assert_eq!(column.paper.as_ref(), Some(&usual));
                let usual = plan.column.iter().find(|c| c.name == usual).unwrap();
                assert_eq!(
                    (column.path, &column.lro, column.rules),
                    (usual.path, &usual.lro, usual.rules)
                );
                assert!(column.place.iter().all(|place| usual.place.contains(place)));
                // The device cannot receive into pages that change hands.
                let grants = match usual.machine.grants {
                    GrantMode::Flip => GrantMode::FlipCopy,
                    grants => grants,
                };
                assert_eq!(
                    (machine.grants, machine.buffers, machine.offloads),
                    (grants, usual.machine.buffers, usual.machine.offloads)
                );
            }
            for ratio in &plan.ratio {
                let is_soft = |name: &String| name.contains("-soft-");
                assert_eq!(is_soft(&ratio.own), is_soft(&ratio.to), "{ratio:?}");
            }
        }
    }

    #[test]
    fn a_number_of_nics_without_a_name_is_one() {
        for name in ["hatori", "sccp", "oi", "ram", "menon"] {
            let columns = plan(name).column.into_iter();
            let unnamed = columns.filter(|column| column.wires.len() == 1);
            let reproduced: Vec<_> = unnamed.filter(|column| column.paper.is_some()).collect();
            assert!(!reproduced.is_empty(), "{name}");
            for column in reproduced {
                assert_eq!(column.wires, [1], "{name}: {}", column.name);
            }
        }
    }

    #[test]
    fn figures_with_a_bar_are_printed_with_it() {
        let plan = plan("small");
        let judged = |config, metric| Figure {
            verdict: Some(ComparisonVerdict::Opposite),
            ..Figure::single("small", config, metric, 1234.0)
        };
        let text = tables::tables(
            &plan,
            &[
                judged("soft-mq-64", "hypercalls_per_packet.driver"),
                judged("ngm-64", "hypercalls_per_packet.driver"),
            ],
        );
        let rows: Vec<&str> = text
            .lines()
            .filter(|row| row.contains("hypercalls_per_packet.driver"))
            .collect();
        assert_eq!(rows.len(), 1, "{text}");
        for part in ["soft-mq-64", "≤ 0.01", "opposite"] {
            assert!(rows[0].contains(part), "{part}: {text}");
        }
    }

    /// The page answers each question of a paper by ratios of columns of the plan.
    #[test]
    fn questions_use_ratios_of_their_plans() {
        let mut questions = 0;
        for plan in PLANS.map(|(_, text)| Plan::parse(text).unwrap()) {
            let Some(paper) = plan.paper.as_deref().filter(|paper| *paper == plan.name) else {
                continue;
            };
            for question in Paper::find(paper).unwrap().question {
                for to in &question.to {
                    let asked = (&question.column, to);
                    let ratio = plan.ratio.iter().find(|of| (&of.own, &of.to) == asked);
                    let metrics = &ratio.unwrap_or_else(|| panic!("{asked:?}")).metrics;
                    assert_eq!(metrics[..], Question::OTHER_METRICS[..2], "{asked:?}");
                    questions += 1;
                }
            }
        }
        assert!(questions > 0);
    }

    #[test]
    fn columns_of_lro_have_the_names_of_their_lro() {
        let plan = plan("lro");
        for column in &plan.column {
            if let Some(lro) = &column.lro {
                assert_eq!(LroColumn::try_from(column.name.clone()).as_ref(), Ok(lro));
            }
        }
        for flush in ["poll", "da2", "t20", "t50", "adaptive"] {
            let name = format!("physical-skb-scatter-{flush}");
            assert!(plan.column.iter().any(|c| c.name == name), "{name}");
        }
    }

    #[test]
    fn a_quick_run_fits_into_two_minutes() {
        for (name, text) in PLANS {
            let plan = Plan::parse(text).unwrap();
            let by = Adjustment {
                quick: true,
                ..Adjustment::default()
            };
            let seconds = plan.adjusted(&by).unwrap().seconds();
            assert!(seconds < 100.0, "{name}: {seconds}");
        }
    }

    #[test]
    fn cores_halt_on_request() {
        let by = Adjustment {
            halt: true,
            ..Adjustment::default()
        };
        for (name, text) in PLANS {
            let study = Base::of(text, &by).unwrap();
            assert_eq!(study.0.wake, [IdleState::Halt], "{name}");
            let head = study.provenance(&Ok(())).placement;
            assert!(head.contains("; cores may halt; "), "{name}: {head}");
        }
    }

    #[test]
    fn faults_are_described() {
        let base = PLANS[0].1;
        for (from, to, message) in [
            ("rounds = 3", "rounds = 2", "at least 3 rounds"),
            ("window_s = 0.15", "window_s = 2", "at most 1"),
            ("gro = \"off\"", "gro = \"of\"", "unknown variant"),
            ("about =", "abuot =", "unknown field"),
            ("name = \"veth-gro-on\"", "name = \"veth-gro-off\"", "twice"),
            ("to = \"forwarder\"", "to = \"fowarder\"", "no column"),
            ("at_least = 0.8", "", "one of at_least, at_most"),
        ] {
            let text = base.replacen(from, to, 1);
            assert_ne!(text, base, "{from}");
            let error = Plan::parse(&text).unwrap_err().to_string();
            assert!(error.contains(message), "{from}: {error}");
        }
    }
}
