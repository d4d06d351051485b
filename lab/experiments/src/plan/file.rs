//! Plan files: their contents, and the names of their configurations.

use super::column::Column;
use super::config::ColumnConfig;
use super::frames::{FileColumn, Frames, Peer};
use super::rounds::Rounds;
use super::threshold::{Ratio, Threshold};
use super::topology::{Place, Topology};
use super::wire::{PollMode, WireSpeed};
use super::workload::{IdleState, PayloadDirection, ReceiveWorkload, Web, Workload};
use crate::load::CHUNK;
use serde::Deserialize;

/// A plan.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Plan name, the argument of `exp`.
    pub name: String,
    /// One-line description, for display.
    pub about: String,
    /// Request sizes, bytes; responses have the same size. Each size is one load.
    pub requests: Vec<usize>,
    /// Numbers of bytes per send call of a stream. Each is one load.
    #[serde(default = "whole_chunks")]
    pub message: Vec<usize>,
    /// True if streams send files in memory with `sendfile`, so that the sender makes no copy.
    #[serde(default)]
    pub sendfile: bool,
    /// True if each message of a stream is a separate packet with PSH set, as with a sender that is
    /// slower than its network.
    #[serde(default)]
    pub push: bool,
    /// Directions of the payload.
    #[serde(default = "both_ways")]
    pub direction: Vec<PayloadDirection>,
    /// Idle states of the cores.
    #[serde(default = "both_wakes")]
    pub wake: Vec<IdleState>,
    /// Wire speeds.
    #[serde(default = "one_wire")]
    pub wire: Vec<WireSpeed>,
    /// Rounds of a full run.
    pub full: Rounds,
    /// Rounds of a quick run, which shows only that everything works.
    pub quick: Rounds,
    /// Columns with a wire.
    #[serde(default)]
    pub column: Vec<Column>,
    /// Columns of raw frames between guests.
    #[serde(default)]
    pub frames: Vec<Frames>,
    /// Columns of raw frames through third-party switches.
    #[serde(default)]
    pub peer: Vec<Peer>,
    /// Columns of files that guests send without copying.
    #[serde(default)]
    pub file: Vec<FileColumn>,
    /// Streams measured against the receiver's buffer size.
    pub receive: Option<ReceiveWorkload>,
    /// Web server load.
    pub web: Option<Web>,
    /// Start-up time of machines.
    pub up: Option<Up>,
    /// Many idle virtual machines.
    #[serde(alias = "crowd")]
    pub idle_vms: Option<IdleVms>,
    /// The paper that the plan reproduces, by its name in `papers/`.
    pub paper: Option<String>,
    /// True if cycles are attributed as in Ram's thesis.
    #[serde(default)]
    pub as_thesis: bool,
    /// Ratios of columns to print.
    #[serde(default)]
    pub ratio: Vec<Ratio>,
    /// Values that figures must reach.
    #[serde(default, rename = "bar")]
    pub threshold: Vec<Threshold>,
}

fn whole_chunks() -> Vec<usize> {
    vec![CHUNK]
}

fn both_ways() -> Vec<PayloadDirection> {
    PayloadDirection::BOTH.to_vec()
}

fn both_wakes() -> Vec<IdleState> {
    vec![IdleState::Awake, IdleState::Halt]
}

fn one_wire() -> Vec<WireSpeed> {
    vec![WireSpeed::unbounded()]
}

/// Many idle virtual machines on one machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdleVms {
    /// Column name.
    pub column: String,
    /// Number of virtual machines.
    pub vms: u32,
}

/// Machines whose start-up time is measured.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Up {
    /// Column name.
    pub column: String,
    /// Numbers of guests.
    pub guests: Vec<u32>,
}

impl Plan {
    /// Returns the configuration of a column at one place and wire, with the keys that vary in this
    /// plan.
    #[must_use]
    pub fn point(
        &self,
        column: &Column,
        place: Option<Place>,
        wire: &WireSpeed,
        moderation: PollMode,
        topology: Topology,
    ) -> ColumnConfig {
        let mut config = ColumnConfig::new(&column.name, &[]);
        let varies = self.column.iter().any(|column| column.place.len() > 1);
        if let Some(place) = place.filter(|_| varies) {
            config = config.with("place", place.name());
        }
        if self.wire.len() > 1 || column.wire.len() > 1 {
            config = config.with("wire", &wire.name);
        }
        // Plans without other moderations need no key for the default, `event`.
        let moderated = self.column.iter().any(|column| column.moderation.len() > 1);
        if moderated && moderation != PollMode::Event {
            config = config.with("moderation", &moderation.name());
        }
        if column.guests.len() > 1 {
            config = config.with("guests", &topology.guests.to_string());
        }
        for (varies, key, count) in [
            (column.rivals.len() > 1, "rivals", topology.rivals),
            (column.wires.len() > 1, "wires", topology.wires),
            (column.flows.len() > 1, "flows", topology.flows),
        ] {
            if varies {
                config = config.with(key, &count.to_string());
            }
        }
        config
    }

    /// Returns the wire speeds at which a column is measured.
    #[must_use]
    pub fn wires<'a>(&'a self, column: &'a Column) -> &'a [WireSpeed] {
        match column.wire.is_empty() {
            true => &self.wire,
            false => &column.wire,
        }
    }

    /// Returns every configuration of a column at one wire.
    pub fn points(&self, column: &Column, wire: &WireSpeed) -> Vec<ColumnConfig> {
        if column.place.is_empty() {
            let point = |topology| self.point(column, None, wire, PollMode::Event, topology);
            return column.machines().into_iter().map(point).collect();
        }
        let point = |(place, moderation, topology)| {
            self.point(column, Some(place), wire, moderation, topology)
        };
        column.variants().map(point).collect()
    }

    /// Estimates the duration of streams, requests and files in seconds, excluding set-up and
    /// repeated windows.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        /// Time to read all counters at both ends of a window, seconds.
        const READING_S: f64 = 0.03;
        /// Time to start and stop a machine with two guests, seconds.
        const MACHINE_S: f64 = 0.6;
        let windows = |column: &Column| {
            let wires = self.wires(column).iter();
            let points: usize = wires.map(|wire| self.points(column, wire).len()).sum();
            points * column.direction.map_or(self.direction.len(), |_| 1)
        };
        let points: usize = self.column.iter().map(windows).sum();
        let beats = (self.message.len() + self.requests.len()) * self.wake.len();
        let times = self.full;
        let each = times.warm_up_s + times.window_s + READING_S;
        let asked: usize = self.column.iter().map(|column| self.serving(column)).sum();
        let rates = self.web.as_ref().map_or(0, |web| web.offered.len());
        let streams = (points * beats * times.rounds) as f64 * each;
        let sizes: usize = self.file.iter().map(|file| file.kb.len()).sum();
        let files = (sizes * times.rounds) as f64 * (each + MACHINE_S);
        let buffers = self.receive.as_ref().map_or(0, |r| r.buffer.len());
        let received = (asked * buffers * times.rounds) as f64 * each;
        let served = (asked * rates * times.rounds) as f64 * (times.window_s + READING_S);
        streams + files + received + served
    }

    /// Returns the number of a column's configurations that serve web requests and vary the receive
    /// buffer. These receive, with only one guest.
    fn serving(&self, column: &Column) -> usize {
        if column.only_streams || !column.runs_in(PayloadDirection::ToGuest) {
            return 0;
        }
        let alone = column
            .variants()
            .filter(|(_, _, topology)| topology.is_alone());
        let each = match column.place.is_empty() {
            true => 1,
            false => alone.count(),
        };
        each * self.wires(column).len()
    }

    /// Adds the stream's message size to a configuration.
    #[must_use]
    pub fn with_message(&self, point: &ColumnConfig, message: usize) -> ColumnConfig {
        match self.message.len() {
            0 | 1 => point.clone(),
            _ => point.clone().with("message", &message.to_string()),
        }
    }

    /// Adds the keys of a workload to a configuration.
    #[must_use]
    pub fn with_workload(
        &self,
        point: &ColumnConfig,
        workload: Workload,
        direction: PayloadDirection,
        wake: IdleState,
    ) -> ColumnConfig {
        let mut config = point.clone();
        // If every column has a fixed direction, the column's name states it.
        let fixed = self
            .column
            .iter()
            .filter(|column| column.direction.is_some());
        let are_named = fixed.count() == self.column.len() && !self.column.is_empty();
        if self.direction.len() > 1 && !are_named {
            config = config.with("dir", direction.name());
        }
        if self.wake.len() > 1 {
            config = config.with("wake", wake.name());
        }
        match workload {
            Workload::Requests(size) if self.requests.len() > 1 => {
                config.with("req", &size.to_string())
            }
            _ => config,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Adjustment;

    const TEXT: &str = r#"
name = "x"
about = "everything that takes time"
requests = [1]
message = [64, 1024]
wake = ["awake"]
full = { rounds = 9, warm_up_s = 0.25, window_s = 1.0 }
quick = { rounds = 3, warm_up_s = 0.1, window_s = 0.5 }
receive = { buffer = [1024, 4096, 65536], quick = [1024] }
web = { offered = [1000, 2000], quick = [500], bytes = 1024 }
column = [
    { name = "linux", path = "veth", gro = "on", wires = [1, 4], direction = "to_guest" },
    { name = "ours", path = "machine", place = ["one-core", "split"] },
    { name = "sends", path = "machine", place = ["one-core"], direction = "from_guest" },
]
file = [{ name = "file", grants = "counted", kb = [4, 8] }]
"#;

    #[test]
    fn a_plan_estimates_its_duration() {
        let plan = Plan::parse(TEXT).unwrap();
        // Streams and requests: seven windows (two columns of Linux, two in both directions, one
        // more) with two messages and requests. Receive buffers: one wire of Linux and two
        // machines, three sizes each. Web server: two rates.
        let windows = 7.0 * 3.0 + 3.0 * 3.0;
        let full = 9.0 * (windows * 1.28 + 3.0 * 2.0 * 1.03 + 2.0 * 1.88);
        assert!((plan.seconds() - full).abs() < 1e-6, "{}", plan.seconds());
        let by = Adjustment {
            quick: true,
            ..Adjustment::default()
        };
        let quick = 3.0 * ((7.0 * 3.0 + 3.0) * 0.63 + 3.0 * 0.53 + 2.0 * 1.23);
        let plan = plan.adjusted(&by).unwrap();
        assert!((plan.seconds() - quick).abs() < 1e-6, "{}", plan.seconds());
        assert_eq!(
            (plan.web.unwrap().offered, plan.receive.unwrap().buffer),
            (vec![500], vec![1024])
        );
    }

    #[test]
    fn directions_are_keys_beside_a_fixed_one() {
        let plan = Plan::parse(TEXT).unwrap();
        let ours = &plan.points(&plan.column[1], &WireSpeed::unbounded())[0];
        let name = |way| {
            let with_workload = plan.with_workload(ours, Workload::Stream, way, IdleState::Awake);
            with_workload.keys.get("dir").cloned()
        };
        assert_eq!(name(PayloadDirection::ToGuest).as_deref(), Some("to_guest"));
        assert_eq!(
            name(PayloadDirection::FromGuest).as_deref(),
            Some("from_guest")
        );
    }

    #[test]
    fn a_column_may_have_separate_speeds() {
        let text = TEXT.replace(
            "direction = \"from_guest\"",
            "wire = [\"0.5\", \"1\"], only_streams = true",
        );
        let error = Plan::parse(&text).unwrap_err().to_string();
        assert!(error.contains("only speeds of the plan"), "{error}");
        let plan = Plan::parse(&format!("as_thesis = true\n{text}")).unwrap();
        let (ours, sends) = (&plan.column[1], &plan.column[2]);
        let names = |column| {
            let points = plan.wires(column).iter();
            let points = points.flat_map(|wire| plan.points(column, wire));
            points.map(|point| point.name()).collect::<Vec<_>>()
        };
        assert_eq!(
            names(sends),
            [
                "sends@place=one-core,wire=0.5",
                "sends@place=one-core,wire=1"
            ]
        );
        assert_eq!(names(ours), ["ours@place=one-core", "ours@place=split"]);
        assert_eq!((plan.serving(ours), plan.serving(sends)), (2, 0));
    }

    #[test]
    fn own_wires_and_mixed_guests_have_a_number() {
        let with = |keys: &str| {
            let ours = "place = [\"one-core\", \"split\"]";
            let text = TEXT.replace(ours, &format!("place = [\"one-core\"], {keys}"));
            Plan::parse(&text)
        };
        let plan = with("guests = [1, 3], own_wires = true").unwrap();
        let numbers = plan.column[1].machines().into_iter();
        let numbers: Vec<_> = numbers
            .map(|machine| (machine.guests, machine.wires))
            .collect();
        assert_eq!(numbers, [(1, 1), (3, 3)]);
        assert!(with("rivals = [4], mixed = true").is_ok());
        for (keys, says) in [
            ("guests = [5], own_wires = true", "at most 4"),
            ("wires = [2], own_wires = true", "at most 4"),
            (
                "own_wires = true, machine = { vmq = true }",
                "excludes `vmq`",
            ),
            ("rivals = [0, 4], mixed = true", "at least one"),
        ] {
            let error = with(keys).unwrap_err().to_string();
            assert!(error.contains(says), "{keys}: {error}");
        }
    }

    #[test]
    fn wires_of_veth_are_named() {
        let plan = Plan::parse(TEXT).unwrap();
        let points = plan.points(&plan.column[0], &WireSpeed::unbounded());
        let names: Vec<String> = points.iter().map(ColumnConfig::name).collect();
        assert_eq!(names, ["linux@wires=1", "linux@wires=4"]);
        let bridge = TEXT.replace("path = \"veth\"", "path = \"bridge\"");
        let error = Plan::parse(&bridge).unwrap_err().to_string();
        assert!(error.contains("`wires` to machine and veth"), "{error}");
    }
}
