//! Plans of the form of `base`: lanes side by side, raw frames, times to come up.

use crate::lane::machine::{self, FrameRun, OnWire, What};
use crate::lane::window::{Times, Work};
use crate::lane::{Cores, Direction, Lane, Loads, Place, forward, kernel_path};
use crate::peers::{self, PeerRun};
use crate::plan::{Column, Frames, Lro, PathKind, Peer, Plan, Up, Wake, Wire, WireNic};
use crate::runner::{Config, Samples};
use crate::spin::Spinners;
use crate::{frontier, prototype, thesis};
use anyhow::Context as _;
use figures::interrupt;
use figures::provenance::Provenance;
use figures::report::Figure;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;

/// Runs a plan.
///
/// # Errors
/// If a lane of ours cannot be set up or breaks, or the user asked to stop. A column whose
/// programs are not installed is reported as not measurable instead.
pub fn run(plan: &Plan, quick: bool) -> anyhow::Result<(Provenance, Vec<Figure>)> {
    if !plan.peer.is_empty() {
        let kinds: Vec<peers::Kind> = plan.peer.iter().map(|peer| peer.switch).collect();
        peers::need(&kinds)?;
    }
    let cores = Cores::choose();
    let placement = match plan.column.is_empty() {
        true => format!(
            "guests on core {}, driver on core {}",
            cores.wire, cores.guest
        ),
        false => format!(
            "wire on core {}, guest on core {}; driver on the guest's (one-core) or the wire's (split)",
            cores.wire, cores.guest
        ),
    };
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
    run.frames()?;
    if let Some(up) = &plan.up {
        run.up(up)?;
    }
    run.bar.finish_and_clear();
    let mut figures = run.samples.figures(&plan.name);
    figures.extend(run.samples.ratios(&plan.name, &plan.ratio, &plan.bar));
    figures.extend(frontier::figures(plan, &run.samples));
    figures.extend(prototype::figures(plan, &run.samples));
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

/// Where a column is measured: which lane, how that is switched, which way, and under which keys.
struct Stop {
    lane: usize,
    lro: Option<Lro>,
    direction: Option<Direction>,
    config: Config,
}

/// Lanes that are up, and the columns' stops among them.
#[derive(Default)]
struct Lanes {
    lanes: Vec<Lane>,
    /// Machines that several columns share, by place, wire, what that is and how it is moderated.
    shared: BTreeMap<(&'static str, String, WireNic, Option<u32>, What), usize>,
    stops: Vec<Stop>,
}

impl Lanes {
    fn push(&mut self, lane: Lane) -> usize {
        self.lanes.push(lane);
        self.lanes.len() - 1
    }

    fn stop(
        &mut self,
        plan: &Plan,
        column: &Column,
        place: Option<Place>,
        wire: &Wire,
        what: What,
        lane: usize,
    ) {
        self.stops.push(Stop {
            lane,
            lro: column.lro.clone(),
            direction: column.direction,
            config: plan.stop(column, place, wire, what),
        });
    }
}

impl Run<'_> {
    fn times(&self) -> Times {
        self.plan.full.times()
    }

    fn streams_and_requests(&mut self) -> anyhow::Result<()> {
        if self.plan.column.is_empty() {
            return Ok(());
        }
        self.bar.set_message("setting up");
        let loads = self.loads();
        let mut lanes = self.lanes(&loads)?;
        let (rounds, wakes) = (self.plan.full.rounds, &self.plan.wake);
        let ways = |stop: &Stop| stop.direction.map_or(loads.directions.len(), |_| 1);
        let each: usize = lanes.stops.iter().map(ways).sum();
        let planned = each * loads.works.len() * wakes.len() * rounds;
        self.allow_redo(planned);
        self.bar.set_length(planned as u64);
        let mut spinners = Spinners::new(&[self.cores.wire, self.cores.guest])?;
        for wake in wakes {
            spinners.set(*wake == Wake::Awake)?;
            for &work in &loads.works {
                for round in 0..rounds {
                    for &direction in &loads.directions {
                        let goes = |stop: &&Stop| stop.direction.is_none_or(|way| way == direction);
                        for stop in lanes.stops.iter().filter(goes) {
                            let Some(lane) = lanes.lanes.get_mut(stop.lane) else {
                                continue;
                            };
                            let config = self.plan.keyed(&stop.config, work, direction, *wake);
                            if let Some(lro) = &stop.lro {
                                lane.switch(lro)?;
                            }
                            self.sample(lane, &config, work, direction, round)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn loads(&self) -> Loads {
        let requests = self.plan.requests.iter().map(|&size| Work::Requests(size));
        Loads {
            works: std::iter::once(Work::Stream).chain(requests).collect(),
            directions: self.plan.direction.clone(),
            flows: 1,
        }
    }

    fn sample(
        &mut self,
        lane: &mut Lane,
        config: &Config,
        work: Work,
        direction: Direction,
        round: usize,
    ) -> anyhow::Result<()> {
        self.bar.set_message(config.name());
        let times = self.times();
        let window = self.undisturbed(
            config,
            || lane.window(work, direction, times),
            |window| window.disturbed,
        )?;
        let mut figures = window.figures(self.tsc_hz);
        if self.plan.as_thesis {
            let machine = lane.between().machine();
            let shared = machine.map(thesis::Shared::of).transpose()?;
            let seconds = times.window.as_secs_f64();
            thesis::count(direction, seconds, shared, &mut figures);
        }
        self.samples.add(config, round, &figures);
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
    fn lanes(&mut self, loads: &Loads) -> anyhow::Result<Lanes> {
        let plan = self.plan;
        let mut lanes = Lanes::default();
        for column in &plan.column {
            let wires = plan.wire.iter().filter(|wire| column.is_at(wire));
            let done = wires.map(|wire| self.column(column, wire, loads, &mut lanes));
            let done = done.collect::<anyhow::Result<()>>();
            let may_lack = matches!(column.path, PathKind::Bridge | PathKind::Veth);
            let config = Config::new(&column.name, &[]);
            self.samples.made(&column.name, done, may_lack, [config])?;
        }
        Ok(lanes)
    }

    /// Sets up a column's lanes, or finds the machine that it shares.
    fn column(
        &self,
        column: &Column,
        wire: &Wire,
        loads: &Loads,
        lanes: &mut Lanes,
    ) -> anyhow::Result<()> {
        interrupt::check()?;
        let name = column.name.as_str();
        let gro = column.gro.unwrap_or(kernel_path::Gro::Off);
        let bridged = column.path == PathKind::Bridge;
        if column.place.is_empty() {
            let lane = kernel_path::lane(bridged, gro, self.cores, loads)?;
            let lane = lanes.push(lane);
            lanes.stop(self.plan, column, None, wire, What::default(), lane);
        }
        let machines = column.machines();
        let each = |&place| machines.iter().map(move |&what| (place, what));
        for (place, what) in column.place.iter().flat_map(each) {
            let key = (
                place.name(),
                wire.name.clone(),
                column.nic,
                column.tick_us,
                what,
            );
            let lane = match lanes.shared.get(&key) {
                Some(&lane) if column.lro.is_some() => lane,
                _ if column.path == PathKind::Forwarder => {
                    lanes.push(forward::lane(place, self.cores, loads)?)
                }
                _ => {
                    let near = OnWire {
                        nic: column.nic,
                        speed: wire,
                        tick_us: column.tick_us,
                    };
                    let lane = machine::lane(place, near, what, self.cores, loads);
                    let lane = lanes.push(lane.with_context(|| format!("column {name}"))?);
                    if column.lro.is_some() {
                        lanes.shared.insert(key, lane);
                    }
                    lane
                }
            };
            lanes.stop(self.plan, column, Some(place), wire, what, lane);
        }
        Ok(())
    }

    /// Every column's sizes and loads, round by round, so that what disturbs the machine disturbs
    /// all alike.
    fn frames(&mut self) -> anyhow::Result<()> {
        let plan = self.plan;
        let own = plan.frames.iter().flat_map(|frames| {
            let loads =
                move |&size: &u32| frames.load.iter().map(move |&load| (frames, size, load));
            let stop = |(frames, size, load)| (Through::Own(frames, load), size);
            frames.size.iter().flat_map(loads).map(stop)
        });
        let peers = plan.peer.iter().flat_map(|peer| {
            let stop = move |&size: &u32| (Through::Peer(peer), size);
            peer.size.iter().map(stop)
        });
        let stops: Vec<(Through<'_>, u32)> = own.chain(peers).collect();
        self.allow_redo(stops.len() * plan.full.rounds);
        let planned = (stops.len() * plan.full.rounds) as u64;
        self.bar.set_length(planned);
        self.bar.set_position(0);
        // What the first column carries of each size, frames a second.
        let mut most = BTreeMap::new();
        for round in 0..plan.full.rounds {
            for &(through, size) in &stops {
                let (cores, times, tsc_hz) = (self.cores, self.times(), self.tsc_hz);
                let config = match through {
                    Through::Own(frames, load) => frames.config(size, load),
                    Through::Peer(peer) => peer.config(size),
                };
                self.bar.set_message(config.name());
                let most_pps = most.get(&size).copied();
                let measure = || match through {
                    Through::Own(frames, load) => FrameRun {
                        grants: &frames.grants,
                        size,
                        guests: frames.guests,
                        active: frames.active,
                        rate_pps: most_pps.filter(|_| load < 1.0).map(|most: f64| most * load),
                        touch: frames.touch,
                        from_guest: frames.from_guest,
                        ring: frames.ring,
                        cores,
                    }
                    .measure(times, tsc_hz),
                    Through::Peer(peer) => PeerRun {
                        kind: peer.switch,
                        size,
                        cores,
                    }
                    .measure(times, tsc_hz),
                };
                let window = self.undisturbed(&config, measure, |window| window.disturbed)?;
                if let Some(mpps) = window.figures.get("packets") {
                    most.entry(size).or_insert(mpps * 1e6);
                }
                self.samples.add(&config, round, &window.figures);
                self.samples.note(&config, &window.conditions);
                self.bar.inc(1);
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

/// Whose switch raw frames go through: the driver domain's at some load, or somebody else's.
#[derive(Clone, Copy)]
enum Through<'a> {
    Own(&'a Frames, f64),
    Peer(&'a Peer),
}

/// How often a machine is started to see how long that takes.
const UP_ROUNDS: usize = 3;
