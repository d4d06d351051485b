//! Plans: what an experiment measures, as data.
//!
//! The files lie in `plans/` and are part of the program.

mod frames;

pub use frames::{Frames, Peer, Prototype};

use crate::lane::kernel_path::Gro;
use crate::lane::machine::What;
use crate::lane::window::{Times, Work};
use crate::lane::{Direction, Place};
use crate::runner::Config;
use config::domain::{BufferSize, GrantMode, Offloads};
use config::lro::Meta;
use figures::stats::Side;
use figures::{Failure, metric};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const EMBEDDED: &[(&str, &str)] = &[
    ("base", include_str!("../plans/base.toml")),
    ("lro", include_str!("../plans/lro.toml")),
    ("peers", include_str!("../plans/peers.toml")),
    ("tcp", include_str!("../plans/tcp.toml")),
    ("isolation", include_str!("../plans/isolation.toml")),
    ("small", include_str!("../plans/small.toml")),
    ("scale", include_str!("../plans/scale.toml")),
    ("thesis", include_str!("../plans/thesis.toml")),
    ("pool", include_str!("../plans/pool.toml")),
    ("workers", include_str!("../plans/workers.toml")),
];

/// A plan.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its name, the argument of `exp`.
    pub name: String,
    /// What it is about, for people.
    pub about: String,
    /// Bytes of a request and of its response, a load for each.
    pub requests: Vec<usize>,
    /// Which way payload goes.
    #[serde(default = "both_ways")]
    pub direction: Vec<Direction>,
    /// What the cores do while nobody needs them.
    #[serde(default = "both_wakes")]
    pub wake: Vec<Wake>,
    /// Speeds of the wire.
    #[serde(default = "one_wire")]
    pub wire: Vec<Wire>,
    /// How long and how often.
    pub full: Rounds,
    /// The same for a run that only shows that everything works.
    pub quick: Rounds,
    /// What is compared.
    #[serde(default)]
    pub column: Vec<Column>,
    /// Raw frames from guest to guest.
    #[serde(default)]
    pub frames: Vec<Frames>,
    /// The same through switches of others.
    #[serde(default)]
    pub peer: Vec<Peer>,
    /// What each hop cost where the data path was measured by itself.
    #[serde(default)]
    pub prototype: Vec<Prototype>,
    /// How long machines take to come up.
    pub up: Option<Up>,
    /// Whether cycles are counted as Ram's thesis has them: see [`crate::thesis`].
    #[serde(default)]
    pub as_thesis: bool,
    /// Which columns are divided by which.
    #[serde(default)]
    pub ratio: Vec<Ratio>,
    /// Figures to be met.
    #[serde(default)]
    pub bar: Vec<Bar>,
}

/// How often, how long.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounds {
    /// Rounds of every configuration, at least 3.
    pub rounds: usize,
    /// Seconds of load before a window.
    pub warm_up_s: f64,
    /// Seconds of a window.
    pub window_s: f64,
}

impl Rounds {
    /// As durations.
    #[must_use]
    pub fn times(&self) -> Times {
        Times {
            warm_up: Duration::from_secs_f64(self.warm_up_s),
            window: Duration::from_secs_f64(self.window_s),
        }
    }

    /// These, or the `quick` ones, as a command line changes them.
    ///
    /// # Errors
    /// [`Failure::Usage`] if what is left makes no run.
    pub fn adjusted(self, quick: Self, args: &crate::exp::Args) -> Result<Self, Failure> {
        let mut rounds = if args.quick { quick } else { self };
        if let Some(count) = args.rounds {
            rounds.rounds = count;
        }
        if let Some(seconds) = args.seconds {
            rounds.window_s = seconds;
        }
        rounds.check("rounds").map_err(Failure::Usage)?;
        Ok(rounds)
    }

    fn check(self, name: &str) -> Result<(), String> {
        if self.rounds < 3 || !(0.0..=1.0e3).contains(&self.warm_up_s) {
            return Err(format!("{name}: at least 3 rounds, warm_up_s not negative"));
        }
        if !(0.05..=600.0).contains(&self.window_s) {
            return Err(format!("{name}: window_s from 0.05 to 600"));
        }
        Ok(())
    }
}

/// A column.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What lies between wire and guest.
    pub path: PathKind,
    /// Where that runs.
    #[serde(default)]
    pub place: Vec<Place>,
    /// What the machine's wire is.
    #[serde(default)]
    pub nic: WireNic,
    /// Interrupt moderation of the machine's wire: microseconds from one look to the next; none:
    /// a look for every event.
    pub tick_us: Option<u32>,
    /// In which ways the machine differs from the usual one.
    #[serde(default)]
    pub machine: Mechanisms,
    /// Guests that have the same load at once.
    #[serde(default = "one_guest")]
    pub guests: Vec<u32>,
    /// Streams of each guest's load.
    #[serde(default = "one_flow")]
    pub flows: Vec<u32>,
    /// The only direction that it is measured in; none: all of the plan's.
    pub direction: Option<Direction>,
    /// How the kernel's paths look at frames.
    pub gro: Option<Gro>,
    /// How the machine aggregates. Columns of one place share a machine, which is switched.
    pub lro: Option<Lro>,
    /// Speeds of the wire that it is measured at; none: all of the plan's.
    #[serde(default)]
    pub wire: Vec<Wire>,
}

impl Column {
    /// Whether it is measured in this direction.
    #[must_use]
    pub fn goes(&self, direction: Direction) -> bool {
        self.direction.is_none_or(|only| only == direction)
    }

    /// The machines that it is measured with.
    #[must_use]
    pub fn machines(&self) -> Vec<What> {
        let of = |&guests| {
            self.flows.iter().map(move |&flows| What {
                mechanisms: self.machine,
                guests,
                flows,
                restarts: false,
            })
        };
        self.guests.iter().flat_map(of).collect()
    }

    /// Whether it is measured at this speed of the wire.
    #[must_use]
    pub fn is_at(&self, wire: &Wire) -> bool {
        self.wire.is_empty() || self.wire.contains(wire)
    }
}

/// What the cores do while nobody needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wake {
    /// They are kept from halting.
    Awake,
    /// They halt, and are woken by an interrupt.
    Halt,
}

impl Wake {
    /// Its name as a key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Awake => "awake",
            Self::Halt => "halt",
        }
    }
}

/// The wire's speed: gigabits of frames a second, by the NIC's token bucket, or `unbounded`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Wire {
    /// As it is written.
    pub name: String,
    /// Megabits a second; none: as fast as it goes.
    pub mbps: Option<f64>,
}

impl Wire {
    /// A wire without a limit.
    #[must_use]
    pub fn unbounded() -> Self {
        Self {
            name: "unbounded".to_owned(),
            mbps: None,
        }
    }
}

impl TryFrom<String> for Wire {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name == "unbounded" {
            return Ok(Self::unbounded());
        }
        match name.parse::<f64>() {
            Ok(gbps) if gbps > 0.0 && gbps < 1e3 => Ok(Self {
                name,
                mbps: Some(gbps * 1e3),
            }),
            _ => Err(format!(
                "wire `{name}`: gigabits a second, or \"unbounded\""
            )),
        }
    }
}

/// A point in the space of LRO's switches, written as the columns are named: `none`, or
/// `<physical|virtual|both>-<skb|page>-<linearize|scatter>-<flush>`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Lro {
    /// None.
    None,
    /// Somewhere.
    At {
        /// `physical`, `virtual` or `both`.
        at: String,
        /// `skb` or `page`.
        buffers: String,
        /// `linearize` or `scatter`.
        backend: String,
        /// `poll`, `da2`, `t20`, `t50`, `adaptive`.
        flush: String,
    },
}

impl Lro {
    /// The switches that lead here, as `grantway set` has them.
    #[must_use]
    pub fn switches(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::None => vec![("lro.at", "none")],
            Self::At {
                at,
                buffers,
                backend,
                flush,
            } => vec![
                ("lro.buffers", buffers),
                ("lro.backend", backend),
                ("lro.flush", flush),
                ("lro.at", at),
            ],
        }
    }
}

impl TryFrom<String> for Lro {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let words: Vec<&str> = name.split('-').collect();
        match *words.as_slice() {
            ["none"] => Ok(Self::None),
            [
                at @ ("physical" | "virtual" | "both"),
                buffers @ ("skb" | "page"),
                backend @ ("linearize" | "scatter"),
                flush,
            ] => Ok(Self::At {
                at: at.to_owned(),
                buffers: buffers.to_owned(),
                backend: backend.to_owned(),
                flush: flush.to_owned(),
            }),
            _ => Err(format!(
                "lro `{name}`: none, or <physical|virtual|both>-<skb|page>-<linearize|scatter>-<flush>"
            )),
        }
    }
}

fn both_ways() -> Vec<Direction> {
    Direction::BOTH.to_vec()
}

fn both_wakes() -> Vec<Wake> {
    vec![Wake::Awake, Wake::Halt]
}

fn one_guest() -> Vec<u32> {
    vec![1]
}

fn one_flow() -> Vec<u32> {
    vec![1]
}

fn one_wire() -> Vec<Wire> {
    vec![Wire::unbounded()]
}

/// What a machine's wire is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireNic {
    /// A TAP.
    #[default]
    Tap,
    /// An AF_XDP socket on a veth pair.
    Xdp,
}

/// In which ways a machine differs from the usual one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mechanisms {
    /// How the driver domain gets at granted pages.
    pub grants: GrantMode,
    /// Whether guests have queues of the wire of their own.
    pub vmq: bool,
    /// Size of the guests' buffers.
    pub buffers: BufferSize,
    /// Received frames ahead whose headers a guest fetches; none: as usual.
    pub prefetch: Option<u32>,
    /// Buffers that replace those whose frames the guest still has.
    pub spare: u32,
    /// Pages of free buffers that stay granted; none: all do.
    pub release_threshold: Option<u32>,
    /// Where the segment size of an aggregate travels on the ring; none: as usual.
    pub meta: Option<Meta>,
    /// What the guests' interfaces may leave to the driver domain.
    pub offloads: Offloads,
    /// Workers of the driver domain; none: one.
    pub workers: Option<u32>,
    /// Firewall rules of each guest's interface that are asked about every frame to it, and none of
    /// which fits a load's.
    pub rules: u16,
}

/// What lies between wire and guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// Monitor, driver domain, guest domain.
    Machine,
    /// The one-process TAP forwarder.
    Forwarder,
    /// The kernel's bridge between two veth pairs.
    Bridge,
    /// A veth pair.
    Veth,
}

/// Times to come up.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Up {
    /// The column's name.
    pub column: String,
    /// Guests of the machine.
    pub guests: Vec<u32>,
}

/// A division of columns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// What is divided: a column, or with a `*` at its end all that begin so.
    pub own: String,
    /// By what, at the same keys (less those that it does not have).
    pub to: String,
    /// What the paper that the plan repeats has for the ratio of `cycles_per_packet.total`: the
    /// measured one is to be on the same side of 1.
    pub paper: Option<f64>,
}

/// A figure to be met.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// The column, or with a `*` at its end all that begin so.
    pub column: String,
    /// The metric.
    pub metric: String,
    /// Keys that a configuration must have for the bar to be its own.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// The figure must not be below.
    pub at_least: Option<f64>,
    /// The figure must not be above.
    pub at_most: Option<f64>,
}

impl Bar {
    /// The bar and the side to be on.
    #[must_use]
    pub fn line(&self) -> Option<(f64, Side)> {
        match (self.at_least, self.at_most) {
            (Some(bar), None) => Some((bar, Side::Above)),
            (None, Some(bar)) => Some((bar, Side::Below)),
            _ => None,
        }
    }

    /// Whether it applies to a figure.
    #[must_use]
    pub fn applies(&self, column: &str, keys: &BTreeMap<String, String>, metric: &str) -> bool {
        names_column(&self.column, column)
            && self.metric == metric
            && self
                .keys
                .iter()
                .all(|(key, value)| keys.get(key) == Some(value))
    }
}

/// Whether `pattern`, a name or the beginning of one and `*`, names `column`.
#[must_use]
pub fn names_column(pattern: &str, column: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => column.starts_with(start),
        None => pattern == column,
    }
}

/// Names of all plans.
#[must_use]
pub fn names() -> Vec<&'static str> {
    let own_form = [
        crate::overhead::NAME,
        crate::receive_buffer::NAME,
        crate::restart::NAME,
    ];
    let embedded = EMBEDDED.iter().map(|(name, _)| *name);
    embedded.chain(own_form).collect()
}

impl Plan {
    /// The embedded plan of this name.
    ///
    /// # Errors
    /// [`Failure::Usage`] if there is none.
    pub fn find(name: &str) -> Result<Self, Failure> {
        let (_, text) = EMBEDDED
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| {
                Failure::Usage(format!(
                    "no plan `{name}`; there is: {}",
                    names().join(", ")
                ))
            })?;
        Self::parse(text)
    }

    /// From a plan file's text.
    ///
    /// # Errors
    /// [`Failure::Usage`] saying what is wrong.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let plan: Self = toml::from_str(text).map_err(|e| Failure::Usage(e.to_string()))?;
        plan.check().map_err(Failure::Usage)?;
        Ok(plan)
    }

    /// The plan as a command line changes it: the length of its rounds, the columns.
    ///
    /// # Errors
    /// [`Failure::Usage`] if what is left makes no plan.
    pub fn adjusted(mut self, args: &crate::exp::Args) -> Result<Self, Failure> {
        if args.quick {
            self.full = self.quick;
        }
        if let Some(rounds) = args.rounds {
            self.full.rounds = rounds;
        }
        if let Some(seconds) = args.seconds {
            self.full.window_s = seconds;
        }
        if let Some(parts) = &args.only {
            self.column.retain(|column| args.wants(&column.name));
            self.frames.retain(|frames| args.wants(&frames.name));
            self.peer.retain(|peer| args.wants(&peer.name));
            let columns = self.column.iter().map(|c| c.name.as_str());
            let left: BTreeSet<&str> = columns
                .chain(self.frames.iter().map(|frames| frames.name.as_str()))
                .chain(self.peer.iter().map(|peer| peer.name.as_str()))
                .collect();
            self.up = self.up.filter(|up| left.contains(up.column.as_str()));
            self.ratio.retain(|ratio| {
                let names = |name: &str| left.iter().any(|column| names_column(name, column));
                names(&ratio.own) && names(&ratio.to)
            });
            self.bar.retain(|bar| {
                let ours = |column: &&str| names_column(&bar.column, column);
                left.iter().any(ours)
            });
            if left.is_empty() {
                return Err(Failure::Usage(format!("no column contains `{parts}`")));
            }
        }
        self.check().map_err(Failure::Usage)?;
        Ok(self)
    }

    /// The configuration of a column at one place and wire, with the keys in which this plan
    /// varies.
    #[must_use]
    pub fn stop(&self, column: &Column, place: Option<Place>, wire: &Wire, what: What) -> Config {
        let mut config = Config::new(&column.name, &[]);
        let varies = self.column.iter().any(|column| column.place.len() > 1);
        if let Some(place) = place.filter(|_| varies) {
            config = config.with("place", place.name());
        }
        if self.wire.len() > 1 {
            config = config.with("wire", &wire.name);
        }
        if column.guests.len() > 1 {
            config = config.with("guests", &what.guests.to_string());
        }
        if column.flows.len() > 1 {
            config = config.with("flows", &what.flows.to_string());
        }
        config
    }

    /// The same with what runs there.
    #[must_use]
    pub fn keyed(&self, stop: &Config, work: Work, direction: Direction, wake: Wake) -> Config {
        let mut config = stop.clone();
        // Columns of one direction have it in their names.
        if self.direction.len() > 1 && self.column.iter().all(|c| c.direction.is_none()) {
            config = config.with("dir", direction.name());
        }
        if self.wake.len() > 1 {
            config = config.with("wake", wake.name());
        }
        match work {
            Work::Requests(size) if self.requests.len() > 1 => {
                config.with("req", &size.to_string())
            }
            _ => config,
        }
    }

    fn check(&self) -> Result<(), String> {
        for (name, rounds) in [("full", self.full), ("quick", self.quick)] {
            rounds.check(name)?;
        }
        if self.quick.window_s > 1.0 {
            return Err("quick: window_s is at most 1".to_owned());
        }
        let mut seen = BTreeSet::new();
        for column in &self.column {
            if !seen.insert(column.name.as_str()) {
                return Err(format!("column `{}` twice", column.name));
            }
            if column.lro.is_some() && column.path != PathKind::Machine {
                return Err(format!(
                    "column `{}`: `lro` belongs to machine",
                    column.name
                ));
            }
            if column.nic != WireNic::Tap && column.path != PathKind::Machine {
                return Err(format!(
                    "column `{}`: `nic` belongs to machine",
                    column.name
                ));
            }
            let usual = column.machine == Mechanisms::default()
                && column.guests == [1]
                && column.flows == [1]
                && column.tick_us.is_none();
            if column.path != PathKind::Machine && !usual {
                return Err(format!(
                    "column `{}`: `machine`, `guests`, `flows` and `tick_us` belong to machine",
                    column.name
                ));
            }
            if !column.flows.iter().all(|flows| (1..=64).contains(flows)) {
                return Err(format!("column `{}`: 1 to 64 `flows`", column.name));
            }
            if !column.guests.iter().all(|guests| (1..=64).contains(guests))
                || self
                    .direction
                    .iter()
                    .all(|&direction| !column.goes(direction))
            {
                return Err(format!(
                    "column `{}`: 1 to 64 `guests`, a `direction` that the plan has",
                    column.name
                ));
            }
            let ours = matches!(column.path, PathKind::Machine | PathKind::Forwarder);
            if ours == column.place.is_empty() || ours == column.gro.is_some() {
                return Err(format!(
                    "column `{}`: `place` belongs to machine and forwarder, `gro` to bridge and veth",
                    column.name
                ));
            }
        }
        for frames in &self.frames {
            if !seen.insert(frames.name.as_str()) {
                return Err(format!("column `{}` twice", frames.name));
            }
            if !(1..=64).contains(&frames.guests) || !(1..=frames.guests).contains(&frames.active) {
                return Err(format!(
                    "`{}`: 1 to 64 `guests`, some of which are `active`",
                    frames.name
                ));
            }
            let loads = &frames.load;
            if loads.is_empty() || loads.iter().any(|load| !(0.001..=1.0).contains(load)) {
                return Err(format!("`{}`: loads up to 1", frames.name));
            }
        }
        if let Some(first) = self.frames.first()
            && first.load.first() != Some(&1.0)
        {
            return Err(format!(
                "`{}`: loads are shares of what the first column carries, so its first one is 1",
                first.name
            ));
        }
        for peer in &self.peer {
            if !seen.insert(peer.name.as_str()) {
                return Err(format!("column `{}` twice", peer.name));
            }
            if peer.size.is_empty() || !peer.size.iter().all(|size| (60..=1514).contains(size)) {
                return Err(format!("`{}`: a `size` from 60 to 1514", peer.name));
            }
        }
        for name in self.ratio.iter().flat_map(|r| [&r.own, &r.to]) {
            if !seen.iter().any(|column| names_column(name, column)) {
                return Err(format!("ratio: no column `{name}`"));
            }
        }
        if self.direction.is_empty() || self.wake.is_empty() || self.wire.is_empty() {
            return Err("direction, wake and wire: at least one of each".to_owned());
        }
        for bar in &self.bar {
            if bar.line().is_none() {
                return Err(format!("bar {}: one of at_least, at_most", bar.metric));
            }
            if metric::unit(&bar.metric).is_empty() && !bar.metric.starts_with("ratio.") {
                return Err(format!("bar: no metric `{}`", bar.metric));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_plans_are_valid_and_named_as_their_file() {
        for (name, _) in EMBEDDED {
            assert_eq!(Plan::find(name).unwrap().name, *name);
        }
    }

    #[test]
    fn base_has_the_columns_that_scripts_know() {
        let plan = Plan::find("base").unwrap();
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
        let plan = Plan::find("lro").unwrap();
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
        for (name, _) in EMBEDDED {
            let plan = Plan::find(name).unwrap();
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
            let works = 1 + plan.requests.len();
            let each = works * plan.wake.len();
            // 30 ms to read everything at a window's ends.
            let seconds = (stops * each * plan.quick.rounds) as f64
                * (plan.quick.warm_up_s + plan.quick.window_s + 0.03);
            assert!(seconds < 100.0, "{name}: {seconds}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let base = EMBEDDED[0].1;
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
        assert_eq!(Plan::find("bsae").unwrap_err().exit_code(), 2);
    }
}
