//! Runs a plan: streams and requests on lanes, raw frames, start-up times.

mod frames;

use super::lanes::{self, LanePoint, Lanes};
use super::thesis;
use crate::idle_cores;
use crate::lane::cores::Cores;
use crate::lane::file_run::FileRun;
use crate::lane::vm::idle_vms;
use crate::lane::{Lane, Loads, machine};
use crate::load::CHUNK;
use crate::plan::{
    ColumnConfig, FileColumn, IdleState, IdleVms, PayloadDirection, Plan, ReceiveWorkload, Times,
    Up, Web, Workload,
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
    /// Number of windows that may still be repeated because of steal.
    repetitions_left: usize,
    bar: ProgressBar,
}

/// The workload of a window.
#[derive(Clone, Copy)]
struct WindowLoad {
    workload: Workload,
    /// Bytes per send call of a stream.
    message: usize,
}

/// Maximum number of repetitions of one window. The limit keeps a long disturbance from consuming
/// the repetitions of other windows.
const REPETITIONS_MAX: usize = 2;

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
            repetitions_left: 0,
            bar: progress::bar(0, "{bar:30} {pos}/{len} {msg}"),
        }
    }

    /// Measures everything in the plan.
    ///
    /// # Errors
    /// Returns an error if a lane cannot be set up or fails, or the user interrupted the run.
    pub(super) fn measure(mut self) -> anyhow::Result<Samples> {
        self.streams_and_requests()?;
        self.frames()?;
        self.files()?;
        if let Some(up) = &self.plan.up {
            self.up(up)?;
        }
        if let Some(idle_vms) = &self.plan.idle_vms {
            self.idle_vms(idle_vms)?;
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
        let ways = |point: &LanePoint| point.direction.map_or(loads.directions.len(), |_| 1);
        let each: usize = lanes.points.iter().map(ways).sum();
        let loads_of_round = self.loads_of_round(&loads);
        let planned = each * loads_of_round.len() * wakes.len() * rounds;
        self.allow_repetitions(planned);
        self.bar.set_length(planned as u64);
        let mut cores = idle_cores::IdleCores::default();
        for &wake in wakes {
            let keep = wake == IdleState::Awake;
            match &self.awake {
                Ok(()) => cores.set(keep)?,
                // If the plan has a variant with halting cores, the awake variant is skipped.
                // Otherwise cores may halt, and the report's header states it.
                Err(why) if keep && wakes.len() > 1 => {
                    let why = why.to_string();
                    self.record_unmeasurable(&lanes, &loads, wake, &why);
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
        let points: Vec<&LanePoint> = lanes.points.iter().filter(|point| point.serves()).collect();
        let rounds = self.plan.full.rounds;
        let planned = points.len() * receive.buffer.len() * rounds;
        self.allow_repetitions(planned);
        self.bar.set_length(planned as u64);
        self.bar.set_position(0);
        for round in 0..rounds {
            for &buffer in &receive.buffer {
                for point in &points {
                    let Some(lane) = lanes.lanes.get_mut(point.lane) else {
                        continue;
                    };
                    if let Some((lro, rules)) = &point.lro {
                        lane.set_lro(lro, *rules)?;
                    }
                    let (config, way) = (
                        ReceiveWorkload::config(&point.config, buffer),
                        PayloadDirection::ToGuest,
                    );
                    lane.set_receive_size(way, buffer)?;
                    self.sample(lane, &config, Workload::Stream, way, round)?;
                }
            }
        }
        Ok(())
    }

    /// Measures the web server at every request rate.
    fn web(&mut self, lanes: &mut Lanes) -> anyhow::Result<()> {
        let Some(web) = &self.plan.web else {
            return Ok(());
        };
        let points = lanes.points.iter().filter(|point| point.serves());
        if let Err(why) = web::possible() {
            for point in points {
                self.samples.absent(
                    &point.config.clone().with("offered", "any"),
                    &why.to_string(),
                );
            }
            return Ok(());
        }
        let planned = points.clone().count() * web.offered.len() * self.plan.full.rounds;
        self.allow_repetitions(planned);
        self.bar.set_length(planned as u64);
        self.bar.set_position(0);
        let mut servers = WebServers::default();
        for round in 0..self.plan.full.rounds {
            for point in points.clone() {
                let Some(lane) = lanes.lanes.get_mut(point.lane) else {
                    continue;
                };
                if let Some((lro, rules)) = &point.lro {
                    lane.set_lro(lro, *rules)?;
                }
                let server = servers.of(point.lane, lane, self.cores, web)?;
                self.web_round(lane, server, point, web, round)?;
            }
        }
        Ok(())
    }

    /// Measures one round of a column's web server: all rates, and the peak.
    fn web_round(
        &mut self,
        lane: &Lane,
        server: &WebServer,
        point: &LanePoint,
        web: &Web,
        round: usize,
    ) -> anyhow::Result<()> {
        let (cores, length, tsc_hz) = (self.cores, self.times().window, self.tsc_hz);
        let mut most = 0.0_f64;
        for &offered in &web.offered {
            let config = Web::config(&point.config, offered);
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
        self.samples.add(&point.config, round, &peak);
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
        let runs = |point: &&LanePoint| point.direction.is_none_or(|way| way == direction);
        for point in lanes.points.iter().filter(runs) {
            let Some(lane) = lanes.lanes.get_mut(point.lane) else {
                continue;
            };
            let mut config = self
                .plan
                .with_workload(&point.config, beat.workload, direction, wake);
            if beat.workload == Workload::Stream {
                config = self.plan.with_message(&config, beat.message);
                lane.set_send_size(beat.message)?;
            }
            if let Some((lro, rules)) = &point.lro {
                lane.set_lro(lro, *rules)?;
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
    fn record_unmeasurable(&mut self, lanes: &Lanes, loads: &Loads, wake: IdleState, why: &str) {
        for point in &lanes.points {
            for &workload in &loads.workloads {
                for &way in &loads.directions {
                    if point.direction.is_none_or(|only| only == way) {
                        let config = self.plan.with_workload(&point.config, workload, way, wake);
                        self.samples.absent(&config, why);
                    }
                }
            }
        }
    }

    /// Runs a window. Repeats it as long as the underlying hypervisor steals too much of it and
    /// repetitions remain.
    fn undisturbed<T>(
        &mut self,
        config: &ColumnConfig,
        mut open: impl FnMut() -> anyhow::Result<T>,
        disturbed: impl Fn(&T) -> bool,
    ) -> anyhow::Result<T> {
        for _ in 0..REPETITIONS_MAX {
            let window = open()?;
            if !disturbed(&window) {
                return Ok(window);
            }
            if self.repetitions_left == 0 {
                self.samples.disturb(config);
                return Ok(window);
            }
            self.repetitions_left -= 1;
        }
        let window = open()?;
        if disturbed(&window) {
            self.samples.disturb(config);
        }
        Ok(window)
    }

    /// Allows one repetition per planned window, or fewer in a short run, which must finish in
    /// time.
    fn allow_repetitions(&mut self, planned: usize) {
        self.repetitions_left = match self.plan.full.is_short() {
            true => planned / 8,
            false => planned,
        };
    }

    /// Measures every file size, round by round.
    fn files(&mut self) -> anyhow::Result<()> {
        let plan = self.plan;
        let sizes = |file| move |&kb: &u32| (file, kb);
        let points = plan
            .file
            .iter()
            .flat_map(|file| file.kb.iter().map(sizes(file)));
        let points: Vec<(&FileColumn, u32)> = points.collect();
        let planned = points.len() * plan.full.rounds;
        self.allow_repetitions(planned);
        self.bar.set_length(planned as u64);
        self.bar.set_position(0);
        for round in 0..plan.full.rounds {
            for &(file, kb) in &points {
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

    fn idle_vms(&mut self, vms: &IdleVms) -> anyhow::Result<()> {
        let config = ColumnConfig::new(&vms.column, &[]);
        self.bar.set_message(config.name());
        for round in 0..self.plan.full.rounds.min(IDLE_VM_ROUNDS) {
            let measured = idle_vms::measure(vms.vms as usize);
            let column = &vms.column;
            match self
                .samples
                .setup_result(column, measured, true, [config.clone()])?
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

/// Number of rounds with many idle virtual machines. Each takes about ten seconds.
const IDLE_VM_ROUNDS: usize = 5;

/// Number of starts by which a start-up time is measured.
const UP_ROUNDS: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of attempts at a window if all are disturbed.
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
        run.allow_repetitions(3);
        assert_eq!(
            [(); 3].map(|()| opened(&mut run)),
            [3, 2, 1],
            "three again, two of one"
        );
        // Repetitions used by an earlier part do not count against this one.
        run.allow_repetitions(2);
        assert_eq!([(); 2].map(|()| opened(&mut run)), [3, 1]);
        let mut quick = plan.clone();
        quick.full = plan.quick;
        let mut run = Run::new(&quick, cores, 1, Ok(()));
        run.allow_repetitions(15);
        assert_eq!(
            [(); 2].map(|()| opened(&mut run)),
            [2, 1],
            "a short run must finish in time"
        );
        assert!(
            run.samples
                .remark(&[&ColumnConfig::new("grantway", &[])])
                .is_some()
        );
    }
}
