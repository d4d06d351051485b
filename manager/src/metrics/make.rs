//! Builds families and samples.

use super::gather::Snapshot;
use super::text::{MetricFamily, MetricSample, SamplePart};
use config::domain::VifConfig;
use std::collections::BTreeSet;

/// Families with their samples.
#[derive(Debug, Default)]
pub(crate) struct Families(pub(super) Vec<(MetricFamily, Vec<MetricSample>)>);

/// All families, one per line: name, kind, help text.
const TABLE: &str = include_str!("families.txt");

impl Families {
    /// Adds a family of [`TABLE`]. A name ends with the unit, if the family has one.
    pub(super) fn add(&mut self, name: &'static str, samples: Vec<MetricSample>) {
        let row = TABLE
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let (kind, help) = row
            .and_then(|row| row.trim_start().split_once(' '))
            .unwrap_or_default();
        let mut units = ["seconds", "bytes"].into_iter();
        let unit = units.find(|unit| name.ends_with(unit));
        let help = help.trim_start();
        let family = MetricFamily {
            kind,
            name,
            unit,
            help,
        };
        self.0.push((family, samples));
    }
}

pub(super) fn sample<const N: usize>(
    labels: [(&'static str, &str); N],
    value: u64,
) -> MetricSample {
    counter_or_gauge(labels, value.to_string())
}

pub(super) fn seconds<const N: usize>(labels: [(&'static str, &str); N], ns: u64) -> MetricSample {
    counter_or_gauge(labels, (ns as f64 / 1e9).to_string())
}

fn counter_or_gauge<const N: usize>(
    labels: [(&'static str, &str); N],
    value: String,
) -> MetricSample {
    let labels = labels.map(|(name, value)| (name, value.to_owned()));
    MetricSample(labels.into(), value, SamplePart::Whole)
}

/// Names of the ports of guests' interfaces, from the core's connections.
pub(super) type Vifs = BTreeSet<String>;

pub(super) fn vifs_of(snapshot: &Snapshot) -> Vifs {
    let connections = snapshot.status.connections.iter();
    let names = connections.map(|c| VifConfig::name_of(&c.frontend, c.handle.into()));
    names.map(|name| format!("vif.{name}")).collect()
}
