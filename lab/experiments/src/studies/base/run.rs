//! Runs a plan: streams and requests on lanes, raw frames, start-up times.

mod frames;

use super::lanes::{self, Lanes, Stop};
use super::thesis;
use crate::idle_cores;
use crate::lane::cores::Cores;
use crate::lane::file_run::FileRun;
use crate::lane::vm::crowd;
use crate::lane::{Lane, Loads, machine};
use crate::load::CHUNK;
use crate::plan::{
    ColumnConfig, Crowd, FileColumn, IdleState, PayloadDirection, Plan, ReceiveWorkload, Times, Up,
    Web, Workload,
};
use crate::progress;
use crate::runner::Samples;
use crate::web::{self, WebServer, WebServers};
use figures::Failure;
use indicatif::ProgressBar;
use std::collections::BTreeMap;

/// A run in progress.
pub(super) struct Run<'a> {
    plan: &'a Plan,
    cores: Cores,
    tsc_hz: u64,
    /// Whether cores can be kept awake.
    awake: Result<(), Failure>,
    samples: Samples,
    /// Remaining windows that may be repeated because of steal.
    redo: usize,
    bar: ProgressBar,
}

/// The workload of a window.
#[derive(Clone, Copy)]
struct WindowLoad {
    workload: Workload,
    /// Bytes per send call of a stream.
    message: usize,
}

/// Maximum repetitions of one window. Limited so that a long disturbance does not use up the
/// repetitions of other windows.
const TRIES: usize = 2;

impl<'a> Run<'a> {
    /// Creates a run.
    pub(super) fn new(
        plan: &'a Plan,
        cores: Cores,
        tsc_hz: u64,
        awake: Result<(), Failure>,
    ) -> Self {
        Self {
            plan,
            cores,
            tsc_hz,
            awake,
            samples: Samples::default(),
            redo: 0,
            bar: progress::bar(0, "{bar:30} {pos}/{len} {msg}"),
        }
    }

    /// Measures everything in the plan.
    ///
    /// # Errors
    /// If a lane cannot be set up or fails, or the user asked to stop.
    pub(super) fn measure(mut self) -> anyhow::Result<Samples> {
        self.streams_and_requests()?;
        self.frames()?;
        self.files()?;
        if let Some(up) = &self.plan.up {
            self.up(up)?;
        }
        if let Some(crowd) = &self.plan.crowd {
            self.crowd(crowd)?;
        }
        self.bar.finish_and_clear();
        Ok(self.samples)
    }

    fn times(&self) -> Times {
        self.plan.full.times()
    }

    fn streams_and_requests(&mut self) -> anyhow::Result<()> {
        if self.plan.column.is_empty() {
            return Ok(());
        }
        self.bar.set_message("setting up");
        let loads = self.loads();
        let mut lanes = lanes::set_up(self.plan, self.cores, &loads, &mut self.samples)?;
        let (rounds, wakes) = (self.plan.full.rounds, &self.plan.wake);
        let ways = |stop: &Stop| stop.direction.map_or(loads.directions.len(), |_| 1);
        let each: usize = lanes.stops.iter().map(ways).sum();
        let loads_of_round = self.loads_of_round(&loads);
        let planned = each * loads_of_round.len() * wakes.len() * rounds;
        self.allow_redo(planned);
        self.bar.set_length(planned as u64);
        let mut cores = idle_cores::IdleCores::default();
        for &wake in wakes {
            let keep = wake == IdleState::Awake;
            match &self.awake {
                Ok(()) => cores.set(keep)?,
                // If the plan has a variant with halting cores, the awake variant is skipped.
                // Otherwise cores may halt, which the report's header states.
                Err(why) if keep && wakes.len() > 1 => {
                    let why = why.to_string();
                    self.leave_out(&lanes, &loads, wake, &why);
                    continue;
                }
                Err(_) => {}
            }
            for &beat in &loads_of_round {
                for round in 0..rounds {
                    for &direction in &loads.directions {
                        self.round(&mut lanes, beat, direction, wake, round)?;
                    }
                }
            }
        }
        for column in self.plan.column.iter().filter(|c| c.wires.len() > 1) {
            self.samples.peaks(&column.name, "wires", "throughput");
        }
        self.received(&mut lanes)?;
        self.web(&mut lanes)
    }

    /// Measures streams by receive buffer. No stream is measured after them.
    fn received(&mut self, lanes: &mut Lanes) -> anyhow::Result<()> {
        let Some(receive) = &self.plan.receive else {
            return Ok(());
        };
        let stops: Vec<&Stop> = lanes.stops.iter().filter(|stop| stop.serves()).collect();
        let rounds = self.plan.full.rounds;
        let planned = stops.len() * receive.buffer.len() * rounds;
        self.allow_redo(planned);
        self.bar.set_length(planned as u64);
        self.bar.set_position(0);
        for round in 0..rounds {
            for &buffer in &receive.buffer {
                for stop in &stops {
                    let Some(lane) = lanes.lanes.get_mut(stop.lane) else {
                        continue;
                    };
                    if let Some((lro, rules)) = &stop.lro {
                        lane.switch(lro, *rules)?;
                    }
                    let (config, way) = (
                        ReceiveWorkload::by(&stop.config, buffer),
                        PayloadDirection::ToGuest,
                    );
                    lane.receive_by(way, buffer)?;
                    self.sample(lane, &config, Workload::Stream, way, round)?;
                }
            }
        }
        Ok(())
    }

    /// Measures the web server at every request rate.
    fn web(&mut self, lanes: &mut Lanes) -> anyhow::Result<()> {
        let Some(asked) = &self.plan.web else {
            return Ok(());
        };
        let stops = lanes.stops.iter().filter(|stop| stop.serves());
        if let Err(why) = web::possible() {
            for stop in stops {
                self.samples.absent(
                    &stop.config.clone().with("offered", "any"),
                    &why.to_string(),
                );
            }
            return Ok(());
        }
        let planned = stops.clone().count() * asked.offered.len() * self.plan.full.rounds;
        self.allow_redo(planned);
        self.bar.set_length(planned as u64);
        self.bar.set_position(0);
        let mut servers = WebServers::default();
        for round in 0..self.plan.full.rounds {
            for stop in stops.clone() {
                let Some(lane) = lanes.lanes.get_mut(stop.lane) else {
                    continue;
                };
                if let Some((lro, rules)) = &stop.lro {
                    lane.switch(lro, *rules)?;
                }
                let server = servers.of(stop.lane, lane, self.cores, asked)?;
                self.asked(lane, server, stop, asked, round)?;
            }
        }
        Ok(())
    }

    /// Measures one round of a column's web server: all rates, and the peak.
    fn asked(
        &mut self,
        lane: &Lane,
        server: &WebServer,
        stop: &Stop,
        web: &Web,
        round: usize,
    ) -> anyhow::Result<()> {
        let (cores, length, tsc_hz) = (self.cores, self.times().window, self.tsc_hz);
        let mut most = 0.0_f64;
        for &offered in &web.offered {
            let config = Web::asked(&stop.config, offered);
            self.bar.set_message(config.name());
            let window = self.undisturbed(
                &config,
                || server.window(lane, cores, offered, length, tsc_hz),
                |window| window.disturbed,
            )?;
            most = most.max(window.figures.get("replies").copied().unwrap_or(0.0));
            self.samples.add(&config, round, &window.figures);
            if let Some(remark) = lane.remark() {
                self.samples.note(&config, remark);
            }
            self.bar.inc(1);
        }
        let peak = BTreeMap::from([("peak_replies".to_owned(), most)]);
        self.samples.add(&stop.config, round, &peak);
        Ok(())
    }

    /// Returns the workloads of a round, in order.
    fn loads_of_round(&self, loads: &Loads) -> Vec<WindowLoad> {
        let loads_of_round = loads.workloads.iter().flat_map(|&workload| {
            let messages = match workload {
                Workload::Stream => self.plan.message.as_slice(),
                Workload::Requests(_) => &[CHUNK],
            };
            messages
                .iter()
                .map(move |&message| WindowLoad { workload, message })
        });
        loads_of_round.collect()
    }

    /// Opens one window of every column in this direction.
    fn round(
        &mut self,
        lanes: &mut Lanes,
        beat: WindowLoad,
        direction: PayloadDirection,
        wake: IdleState,
        round: usize,
    ) -> anyhow::Result<()> {
        let goes = |stop: &&Stop| stop.direction.is_none_or(|way| way == direction);
        for stop in lanes.stops.iter().filter(goes) {
            let Some(lane) = lanes.lanes.get_mut(stop.lane) else {
                continue;
            };
            let mut config = self
                .plan
                .keyed(&stop.config, beat.workload, direction, wake);
            if beat.workload == Workload::Stream {
                config = self.plan.sent_by(&config, beat.message);
                lane.send_by(beat.message)?;
            }
            if let Some((lro, rules)) = &stop.lro {
                lane.switch(lro, *rules)?;
            }
            self.sample(lane, &config, beat.workload, direction, round)?;
        }
        Ok(())
    }

    fn loads(&self) -> Loads {
        let requests = self
            .plan
            .requests
            .iter()
            .map(|&size| Workload::Requests(size));
        Loads {
            workloads: std::iter::once(Workload::Stream).chain(requests).collect(),
            directions: self.plan.direction.clone(),
            sendfile: self.plan.sendfile,
            push: self.plan.push,
            ..Loads::default()
        }
    }

    fn sample(
        &mut self,
        lane: &mut Lane,
        config: &ColumnConfig,
        workload: Workload,
        direction: PayloadDirection,
        round: usize,
    ) -> anyhow::Result<()> {
        self.bar.set_message(config.name());
        let times = self.times();
        let window = self.undisturbed(
            config,
            || lane.window(workload, direction, times),
            |window| window.disturbed,
        )?;
        let mut figures = window.figures(self.tsc_hz);
        if self.plan.as_thesis && workload == Workload::Stream {
            let machine = lane.path().machine();
            let shared = machine.map(thesis::Sharing::of).transpose()?;
            let seconds = times.window.as_secs_f64();
            thesis::count(direction, seconds, shared, &mut figures);
        }
        self.samples.add(config, round, &figures);
        if let Some(remark) = lane.remark() {
            self.samples.note(config, remark);
        }
        self.bar.inc(1);
        Ok(())
    }

    /// Records every configuration with this idle state as not measurable.
    fn leave_out(&mut self, lanes: &Lanes, loads: &Loads, wake: IdleState, why: &str) {
        for stop in &lanes.stops {
            for &workload in &loads.workloads {
                for &way in &loads.directions {
                    if stop.direction.is_none_or(|only| only == way) {
                        let config = self.plan.keyed(&stop.config, workload, way, wake);
                        self.samples.absent(&config, why);
                    }
                }
            }
        }
    }

    /// Runs a window. Repeats it while the underlying hypervisor stole too much of it and
    /// repetitions remain.
    fn undisturbed<T>(
        &mut self,
        config: &ColumnConfig,
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

    /// Allows as many repetitions as windows are planned, or fewer in a short run, which must end
    /// in time.
    fn allow_redo(&mut self, planned: usize) {
        self.redo = match self.plan.full.is_short() {
            true => planned / 8,
            false => planned,
        };
    }

    /// Measures every file size, round by round.
    fn files(&mut self) -> anyhow::Result<()> {
        let plan = self.plan;
        let sizes = |file| move |&kb: &u32| (file, kb);
        let stops = plan
            .file
            .iter()
            .flat_map(|file| file.kb.iter().map(sizes(file)));
        let stops: Vec<(&FileColumn, u32)> = stops.collect();
        let planned = stops.len() * plan.full.rounds;
        self.allow_redo(planned);
        self.bar.set_length(planned as u64);
        self.bar.set_position(0);
        for round in 0..plan.full.rounds {
            for &(file, kb) in &stops {
                let run = FileRun {
                    grants: file.grants,
                    kb,
                    cores: self.cores,
                };
                let (config, times, tsc_hz) = (file.config(kb), self.times(), self.tsc_hz);
                self.bar.set_message(config.name());
                let measure = || run.measure(times, tsc_hz);
                let window = self.undisturbed(&config, measure, |window| window.disturbed)?;
                self.samples.add(&config, round, &window.figures);
                self.samples.note(&config, &window.conditions);
                self.bar.inc(1);
            }
        }
        Ok(())
    }

    fn crowd(&mut self, crowd: &Crowd) -> anyhow::Result<()> {
        let config = ColumnConfig::new(&crowd.column, &[]);
        self.bar.set_message(config.name());
        for round in 0..self.plan.full.rounds.min(CROWD_ROUNDS) {
            let measured = crowd::measure(crowd.vms as usize);
            let column = &crowd.column;
            match self
                .samples
                .made(column, measured, true, [config.clone()])?
            {
                Some(figures) => self.samples.add(&config, round, &figures),
                None => break,
            }
        }
        Ok(())
    }

    fn up(&mut self, up: &Up) -> anyhow::Result<()> {
        for &guests in &up.guests {
            let config = ColumnConfig::new(&up.column, &[("guests", &guests.to_string())]);
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

/// Number of rounds of many idle virtual machines. Each takes some ten seconds.
const CROWD_ROUNDS: usize = 5;

/// Number of machine starts per start-up time.
const UP_ROUNDS: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of attempts at a window if every attempt is disturbed.
    fn opened(run: &mut Run<'_>) -> usize {
        let mut opened = 0;
        let open = || {
            opened += 1;
            Ok(())
        };
        let config = ColumnConfig::new("grantway", &[]);
        run.undisturbed(&config, open, |()| true).unwrap();
        opened
    }

    #[test]
    fn each_part_has_its_own_repetitions() {
        let text = super::super::PLANS.iter().find(|(name, _)| *name == "base");
        let plan = Plan::parse(text.unwrap().1).unwrap();
        let cores = Cores { wire: 0, guest: 1 };
        let mut run = Run::new(&plan, cores, 1, Ok(()));
        assert_eq!(opened(&mut run), 1, "nothing was planned");
        run.allow_redo(3);
        assert_eq!(
            [(); 3].map(|()| opened(&mut run)),
            [3, 2, 1],
            "three again, two of one"
        );
        // Repetitions used by an earlier part do not count against this one.
        run.allow_redo(2);
        assert_eq!([(); 2].map(|()| opened(&mut run)), [3, 1]);
        let mut quick = plan.clone();
        quick.full = plan.quick;
        let mut run = Run::new(&quick, cores, 1, Ok(()));
        run.allow_redo(15);
        assert_eq!(
            [(); 2].map(|()| opened(&mut run)),
            [2, 1],
            "a short run has to end in time"
        );
        assert!(
            run.samples
                .remark(&[&ColumnConfig::new("grantway", &[])])
                .is_some()
        );
    }
}
