//! Raw frames: the driver domain and third-party switches, by size and load.

use super::Run;
use crate::lane::frame_run::FrameRun;
use crate::peers::touch::TouchProgram;
use crate::peers::{self, PeerRun};
use crate::plan::{Frames, Peer, PeerKind};
use figures::Failure;
use std::collections::BTreeMap;

/// The path of raw frames: the driver domain at some load, or a third-party switch.
#[derive(Clone, Copy)]
enum Through<'a> {
    Own(&'a Frames, f64),
    Peer(&'a Peer),
}

impl Run<'_> {
    /// Measures all sizes and loads of all columns round by round, so that a disturbance affects
    /// all columns alike.
    pub(super) fn frames(&mut self) -> anyhow::Result<()> {
        let plan = self.plan;
        let own = plan.frames.iter().flat_map(|frames| {
            let loads =
                move |&size: &u32| frames.load.iter().map(move |&load| (frames, size, load));
            let point = |(frames, size, load)| (Through::Own(frames, load), size);
            frames.size.iter().flat_map(loads).map(point)
        });
        let can_run = self.can_run_peers()?;
        let touch = if can_run { self.touching()? } else { None };
        let possible = |peer: &&Peer| can_run && (!peer.touch || touch.is_some());
        let peers = plan.peer.iter().filter(possible).flat_map(|peer| {
            let point = move |&size: &u32| (Through::Peer(peer), size);
            peer.size.iter().map(point)
        });
        let points: Vec<(Through<'_>, u32)> = own.chain(peers).collect();
        self.allow_repetitions(points.len() * plan.full.rounds);
        let planned = (points.len() * plan.full.rounds) as u64;
        self.bar.set_length(planned);
        self.bar.set_position(0);
        // Maximum rate of the first column at each size, frames per second.
        let mut most = BTreeMap::new();
        for round in 0..plan.full.rounds {
            for &(through, size) in &points {
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
                        in_flight: frames.in_flight,
                        to_guest: frames.to_guest,
                        ring: frames.ring,
                        flows: frames.flows,
                        stateful: frames.stateful,
                        allow: frames.allow,
                        nic: frames.nic,
                        cores,
                    }
                    .measure(times, tsc_hz),
                    Through::Peer(peer) => PeerRun {
                        kind: peer.switch,
                        size,
                        touch: touch.as_ref().filter(|_| peer.touch),
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

    /// Returns whether third-party switches can run here. If they cannot and the plan has other
    /// columns, records the reason.
    ///
    /// # Errors
    /// Returns an error if they cannot run and the plan has no other columns.
    fn can_run_peers(&mut self) -> anyhow::Result<bool> {
        let kinds: Vec<PeerKind> = self.plan.peer.iter().map(|peer| peer.switch).collect();
        match peers::require_programs(&kinds) {
            _ if kinds.is_empty() => Ok(false),
            Ok(()) => Ok(true),
            Err(Failure::CannotRun(why)) if !self.plan.column.is_empty() => {
                for peer in &self.plan.peer {
                    for &size in &peer.size {
                        self.samples.absent(&peer.config(size), &why);
                    }
                }
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Compiles the peers' guest program that touches payload, if the plan has columns of it.
    /// Returns `None` and records why if these columns cannot be measured here.
    fn touching(&mut self) -> anyhow::Result<Option<TouchProgram>> {
        if !self.plan.peer.iter().any(|peer| peer.touch) {
            return Ok(None);
        }
        match TouchProgram::build() {
            Ok(program) => Ok(Some(program)),
            Err(Failure::CannotRun(why)) => {
                for peer in self.plan.peer.iter().filter(|peer| peer.touch) {
                    for &size in &peer.size {
                        self.samples.absent(&peer.config(size), &why);
                    }
                }
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}
