//! Plans of the form of `base`: lanes side by side, raw frames, times to come up.

use crate::lane::machine::{self, FrameRun};
use crate::lane::window::{Times, Work};
use crate::lane::{Cores, Direction, Lane, Place, forward, kernel_path};
use crate::plan::{Column, Frames, PathKind, Plan, Up};
use crate::provenance::Provenance;
use crate::report::{Figure, Index, cell, table};
use crate::runner::{Config, Samples};
use crate::spin::Spinners;
use crate::{Failure, interrupt};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;

/// Runs a plan.
///
/// # Errors
/// If a lane of ours cannot be set up or breaks, or the user asked to stop. A column whose
/// programs are not installed is reported as not measurable instead.
pub fn run(plan: &Plan, quick: bool) -> anyhow::Result<(Provenance, Vec<Figure>)> {
    let cores = Cores::choose();
    let placement = format!(
        "wire on core {}, guest on core {}; driver on the guest's (one-core) or the wire's (split)",
        cores.wire, cores.guest
    );
    let provenance = Provenance::collect(placement, quick);
    let mut run = Run {
        plan,
        quick,
        cores,
        tsc_hz: provenance.tsc_hz,
        samples: Samples::default(),
        redo: 0,
        bar: ProgressBar::new(0).with_style(
            ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar()),
        ),
    };
    run.streams_and_requests()?;
    for frames in &plan.frames {
        run.frames(frames)?;
    }
    if let Some(up) = &plan.up {
        run.up(up)?;
    }
    run.bar.finish_and_clear();
    let mut figures = run.samples.figures(&plan.name);
    figures.extend(run.samples.ratios(&plan.name, &plan.ratio, &plan.bar));
    Ok((provenance, figures))
}

struct Run<'a> {
    plan: &'a Plan,
    quick: bool,
    cores: Cores,
    tsc_hz: u64,
    samples: Samples,
    /// Windows that may still be opened again because of steal.
    redo: usize,
    bar: ProgressBar,
}

/// How often one window is opened again at the most: a long disturbance is not to use up what
/// others need.
const TRIES: usize = 2;

/// States of the cores while nobody needs them.
const WAKE: [(&str, bool); 2] = [("awake", true), ("halt", false)];

impl Run<'_> {
    fn times(&self) -> Times {
        self.plan.full.times()
    }

    fn streams_and_requests(&mut self) -> anyhow::Result<()> {
        if self.plan.column.is_empty() {
            return Ok(());
        }
        self.bar.set_message("setting up");
        let mut lanes = self.lanes()?;
        let rounds = self.plan.full.rounds;
        let planned = lanes.len() * WAKE.len() * Work::BOTH.len() * Direction::BOTH.len() * rounds;
        self.allow_redo(planned);
        self.bar.set_length(planned as u64);
        let mut spinners = Spinners::new(&[self.cores.wire, self.cores.guest])?;
        for (wake, awake) in WAKE {
            spinners.set(awake)?;
            for work in Work::BOTH {
                for round in 0..rounds {
                    for direction in Direction::BOTH {
                        for lane in &mut lanes {
                            self.sample(lane, work, direction, wake, round)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn sample(
        &mut self,
        lane: &mut Lane,
        work: Work,
        direction: Direction,
        wake: &str,
        round: usize,
    ) -> anyhow::Result<()> {
        let config = Config {
            column: lane.column.clone(),
            keys: lane.keys.clone(),
        }
        .with("dir", direction.name())
        .with("wake", wake);
        self.bar.set_message(config.name());
        let times = self.times();
        let window = self.undisturbed(
            &config,
            || lane.window(work, direction, times),
            |window| window.disturbed,
        )?;
        self.samples
            .add(&config, round, &window.figures(self.tsc_hz));
        self.bar.inc(1);
        Ok(())
    }

    /// A window, opened again while the hypervisor below took too much of it and there are
    /// windows left to repeat.
    fn undisturbed<T>(
        &mut self,
        config: &Config,
        mut open: impl FnMut() -> anyhow::Result<T>,
        disturbed: impl Fn(&T) -> bool,
    ) -> anyhow::Result<T> {
        for _ in 0..TRIES {
            let window = open()?;
            if !disturbed(&window) {
                return Ok(window);
            }
            if self.redo == 0 {
                self.samples.disturb(config);
                return Ok(window);
            }
            self.redo -= 1;
        }
        let window = open()?;
        if disturbed(&window) {
            self.samples.disturb(config);
        }
        Ok(window)
    }

    /// As many windows may be opened again as are planned; in a quick run fewer, because that has
    /// to end in time.
    fn allow_redo(&mut self, planned: usize) {
        self.redo = if self.quick { planned / 8 } else { planned };
    }

    /// Every column's lanes; columns that need absent programs are noted as not measurable.
    fn lanes(&mut self) -> anyhow::Result<Vec<Lane>> {
        let mut lanes = Vec::new();
        for column in &self.plan.column {
            match self.column(column) {
                Ok(found) => lanes.extend(found),
                Err(error) => match error.downcast_ref::<Failure>() {
                    Some(Failure::CannotRun(why))
                        if matches!(column.path, PathKind::Bridge | PathKind::Veth) =>
                    {
                        self.samples.absent(&Config::new(&column.name, &[]), why);
                    }
                    _ => return Err(error.context(format!("column {}", column.name))),
                },
            }
        }
        Ok(lanes)
    }

    fn column(&self, column: &Column) -> anyhow::Result<Vec<Lane>> {
        interrupt::check()?;
        let (name, request) = (column.name.as_str(), self.plan.request_bytes);
        let gro = column.gro.unwrap_or(kernel_path::Gro::Off);
        let each = |make: &dyn Fn(Place) -> anyhow::Result<Lane>| {
            column.place.iter().map(|&place| make(place)).collect()
        };
        match column.path {
            PathKind::Machine => each(&|place| machine::lane(name, place, self.cores, request)),
            PathKind::Forwarder => each(&|place| forward::lane(name, place, self.cores, request)),
            PathKind::Bridge => {
                kernel_path::lane(name, true, gro, self.cores, request).map(|lane| vec![lane])
            }
            PathKind::Veth => {
                kernel_path::lane(name, false, gro, self.cores, request).map(|lane| vec![lane])
            }
        }
    }

    fn frames(&mut self, frames: &Frames) -> anyhow::Result<()> {
        self.allow_redo(frames.size.len() * self.plan.full.rounds);
        for round in 0..self.plan.full.rounds {
            for &size in &frames.size {
                let config = Config::new(&frames.name, &[("size", &size.to_string())]);
                self.bar.set_message(config.name());
                let run = FrameRun {
                    grants: &frames.grants,
                    size,
                    cores: self.cores,
                };
                let times = self.times();
                let tsc_hz = self.tsc_hz;
                let window = self.undisturbed(
                    &config,
                    || run.measure(times, tsc_hz),
                    |window| window.disturbed,
                )?;
                self.samples.add(&config, round, &window.figures);
            }
        }
        Ok(())
    }

    fn up(&mut self, up: &Up) -> anyhow::Result<()> {
        for &guests in &up.guests {
            let config = Config::new(&up.column, &[("guests", &guests.to_string())]);
            self.bar.set_message(config.name());
            for round in 0..self.plan.full.rounds.min(UP_ROUNDS) {
                let ms = machine::up_ms(guests)?;
                let figures = BTreeMap::from([("up_ms".to_owned(), ms)]);
                self.samples.add(&config, round, &figures);
            }
        }
        Ok(())
    }
}

/// How often a machine is started to see how long that takes.
const UP_ROUNDS: usize = 3;

/// The figures as tables.
#[must_use]
pub fn tables(plan: &Plan, figures: &[Figure]) -> String {
    let index = Index::new(figures);
    let mut out = String::new();
    for (wake, _) in WAKE {
        for direction in Direction::BOTH {
            let rows: Vec<Vec<String>> = plan
                .column
                .iter()
                .flat_map(|column| lane_rows(&index, column, direction, wake))
                .collect();
            if rows.is_empty() {
                continue;
            }
            out.push_str(&format!("{}, cores {wake}\n", direction.name()));
            let header = [
                "column",
                "Gb/s",
                "cycles/B",
                "receive side",
                "requests/s",
                "p50 us",
                "p99 us",
            ];
            out.push_str(&table(&header, &rows));
            out.push_str("\n\n");
        }
    }
    out.push_str(&frame_table(plan, &index));
    out.push_str(&ratio_table(figures));
    for figure in figures.iter().filter(|f| f.metric == "up_ms") {
        out.push_str(&format!(
            "{}: up in {} ms\n",
            figure.config,
            cell(Some(figure))
        ));
    }
    out
}

fn lane_rows(
    index: &Index<'_>,
    column: &Column,
    direction: Direction,
    wake: &str,
) -> Vec<Vec<String>> {
    let base = Config::new(&column.name, &[("dir", direction.name()), ("wake", wake)]);
    let configs = if column.place.is_empty() {
        vec![(column.name.clone(), base)]
    } else {
        column
            .place
            .iter()
            .map(|place| {
                let title = format!("{} {}", column.name, place.name());
                (title, base.clone().with("place", place.name()))
            })
            .collect()
    };
    configs
        .into_iter()
        .map(|(title, config)| {
            let name = config.name();
            let mut row = vec![title];
            row.extend(
                [
                    "throughput",
                    "cycles_per_byte.total",
                    "cycles_per_byte.receive_side",
                    "transactions",
                    "latency_us.p50",
                    "latency_us.p99",
                ]
                .map(|metric| short(index.get(&name, metric))),
            );
            row
        })
        .collect()
}

/// Only the median: intervals of seven columns do not fit a line; they are in the data.
fn short(figure: Option<&Figure>) -> String {
    figure
        .and_then(|f| f.value)
        .map_or_else(|| "–".to_owned(), crate::report::number)
}

fn frame_table(plan: &Plan, index: &Index<'_>) -> String {
    let mut rows = Vec::new();
    for frames in &plan.frames {
        for size in &frames.size {
            let name = Config::new(&frames.name, &[("size", &size.to_string())]).name();
            rows.push(
                std::iter::once(name.clone())
                    .chain(
                        [
                            "packets",
                            "cycles_per_packet.driver",
                            "cycles_per_packet.guest",
                            "cycles_per_packet.monitor",
                            "closure.driver",
                        ]
                        .map(|metric| cell(index.get(&name, metric))),
                    )
                    .collect(),
            );
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let header = [
        "guest to guest",
        "Mpps",
        "driver cyc",
        "guests cyc",
        "monitor cyc",
        "closure",
    ];
    format!("{}\n\n", table(&header, &rows))
}

fn ratio_table(figures: &[Figure]) -> String {
    let rows: Vec<Vec<String>> = figures
        .iter()
        .filter(|f| f.metric.starts_with("ratio."))
        .map(|f| {
            let verdict = f
                .verdict
                .and_then(|v| serde_json::to_value(v).ok())
                .and_then(|v| v.as_str().map(str::to_owned))
                .unwrap_or_default();
            vec![f.config.clone(), f.metric.clone(), cell(Some(f)), verdict]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "{}\n\n",
        table(&["configuration", "ratio", "own / other", "verdict"], &rows)
    )
}
