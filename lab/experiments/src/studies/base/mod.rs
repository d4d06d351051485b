//! Plans of the form of `base`: lanes side by side, raw frames, times to come up.
//!
//! | module | what it is |
//! |---|---|
//! | `run`, `lanes` | windows on the lanes of all columns, round by round |
//! | `thesis` | how Ram's thesis counts cycles |
//! | `frontier` | which way to flush loses to which |
//! | `prototype` | how far each hop is from the data path alone |
//! | `tables` | the figures as text |

mod frontier;
mod lanes;
mod prototype;
mod run;
mod tables;
mod thesis;

use super::{Outcome, Study};
use crate::lane::cores::Cores;
use crate::peers;
use crate::plan::{Adjustment, PeerKind, Plan};
use figures::Failure;
use figures::provenance::Provenance;
use figures::report::Figure;
use run::Run;

/// The plans of this form: names, and the texts of their files.
pub const PLANS: [(&str, &str); 10] = [
    ("base", include_str!("../../../plans/base.toml")),
    ("lro", include_str!("../../../plans/lro.toml")),
    ("peers", include_str!("../../../plans/peers.toml")),
    ("tcp", include_str!("../../../plans/tcp.toml")),
    ("isolation", include_str!("../../../plans/isolation.toml")),
    ("small", include_str!("../../../plans/small.toml")),
    ("scale", include_str!("../../../plans/scale.toml")),
    ("thesis", include_str!("../../../plans/thesis.toml")),
    ("pool", include_str!("../../../plans/pool.toml")),
    ("workers", include_str!("../../../plans/workers.toml")),
];

/// A plan of this form.
#[derive(Debug)]
pub struct Base(Plan);

impl Base {
    /// From a plan's text.
    ///
    /// # Errors
    /// [`Failure::Usage`] saying what is wrong with it, or with what is left of it.
    pub fn open(text: &str, by: &Adjustment) -> Result<Box<dyn Study>, Failure> {
        let plan = Plan::parse(text)?.adjusted(by)?;
        Ok(Box::new(Self(plan)))
    }
}

impl Study for Base {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn about(&self) -> &str {
        &self.0.about
    }

    fn run(&self, quick: bool) -> anyhow::Result<Outcome> {
        let plan = &self.0;
        if !plan.peer.is_empty() {
            let kinds: Vec<PeerKind> = plan.peer.iter().map(|peer| peer.switch).collect();
            peers::need(&kinds)?;
        }
        let cores = Cores::choose();
        let placement = match plan.column.is_empty() {
            true => format!(
                "guests on core {}, driver on core {}",
                cores.wire, cores.guest
            ),
            false => format!(
                "wire on core {}, guest on core {}; driver on the guest's (one-core) or the \
                 wire's (split)",
                cores.wire, cores.guest
            ),
        };
        let provenance = Provenance::collect(placement, quick);
        let samples = Run::new(plan, quick, cores, provenance.tsc_hz).measure()?;
        let mut figures = samples.figures(&plan.name);
        figures.extend(samples.ratios(&plan.name, &plan.ratio, &plan.threshold));
        figures.extend(frontier::figures(plan, &samples));
        figures.extend(prototype::figures(plan, &samples));
        Ok(Outcome {
            provenance,
            figures,
        })
    }

    fn tables(&self, figures: &[Figure]) -> String {
        tables::tables(&self.0, figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Lro;

    fn plan(name: &str) -> Plan {
        let found = PLANS.iter().find(|(known, _)| *known == name);
        Plan::parse(found.unwrap().1).unwrap()
    }

    #[test]
    fn embedded_plans_are_valid_and_named_as_their_file() {
        for (name, text) in PLANS {
            assert_eq!(Plan::parse(text).unwrap().name, *name);
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
                "forwarder",
                "bridge-gro-off",
                "bridge-gro-on",
                "bridge-gro-napi",
                "veth-gro-off",
                "veth-gro-on",
                "veth-gro-napi"
            ]
        );
        let frames: Vec<&str> = plan.frames.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(frames, ["frames-map", "frames-mapped"]);
    }

    #[test]
    fn columns_of_lro_are_named_as_what_they_are() {
        let plan = plan("lro");
        for column in &plan.column {
            if let Some(lro) = &column.lro {
                assert_eq!(Lro::try_from(column.name.clone()).as_ref(), Ok(lro));
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
            let stops: usize = plan
                .column
                .iter()
                .map(|column| {
                    let wires = plan.wire.iter().filter(|wire| column.is_at(wire)).count();
                    let ways = column.direction.map_or(plan.direction.len(), |_| 1);
                    let machines = column.guests.len() * column.flows.len();
                    column.place.len().max(1) * machines * wires * ways
                })
                .sum();
            let workloads = 1 + plan.requests.len();
            let each = workloads * plan.wake.len();
            // 30 ms to read everything at a window's ends.
            let seconds = (stops * each * plan.quick.rounds) as f64
                * (plan.quick.warm_up_s + plan.quick.window_s + 0.03);
            assert!(seconds < 100.0, "{name}: {seconds}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let base = PLANS[0].1;
        for (from, to, message) in [
            ("rounds = 3", "rounds = 2", "at least 3 rounds"),
            ("window_s = 0.2", "window_s = 2", "at most 1"),
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
