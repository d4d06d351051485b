//! The demonstration on TAPs, with ordinary sockets at both ends.

use super::findings::{COLUMN, Findings, PLAN, add_access, bar, query_access, title};
use crate::lane::build::OnWire;
use crate::lane::cores::Cores;
use crate::lane::{Loads, machine};
use crate::plan::{ColumnConfig, PayloadDirection, Place, Times, Topology, WireSpeed, Workload};
use crate::runner::Samples;
use std::time::Duration;

/// Returns the number of rounds, and the length of a window.
fn schedule(quick: bool) -> (usize, Times) {
    let ms = Duration::from_millis;
    if quick {
        let times = Times {
            warm_up: ms(100),
            window: ms(400),
        };
        (3, times)
    } else {
        let times = Times {
            warm_up: ms(300),
            window: ms(1000),
        };
        (5, times)
    }
}

/// Runs the demonstration on TAPs.
pub(super) fn find(quick: bool, cores: Cores, tsc_hz: u64) -> anyhow::Result<Findings> {
    let speed = WireSpeed::unbounded();
    let near = OnWire::tap(&speed);
    let mut lane = machine::lane(
        Place::OneCore,
        near,
        Topology::default(),
        cores,
        &Loads::default(),
    )?;
    let (rounds, times) = schedule(quick);
    let mut samples = Samples::default();
    let windows = rounds * Workload::BOTH.len() * PayloadDirection::BOTH.len();
    let bar = bar(windows as u64);
    let mut access = None;
    // At most half of the windows are repeated because of steal, so that the demonstration finishes
    // in time.
    let mut repetitions_left = windows / 2;
    for round in 0..rounds {
        for workload in Workload::BOTH {
            for direction in PayloadDirection::BOTH {
                bar.set_message(title(workload, direction));
                let config = ColumnConfig::new(COLUMN, &[("dir", direction.name())]);
                let mut window = lane.window(workload, direction, times)?;
                if window.disturbed && repetitions_left > 0 {
                    repetitions_left -= 1;
                    window = lane.window(workload, direction, times)?;
                }
                if window.disturbed {
                    samples.disturb(&config);
                }
                samples.add(&config, round, &window.figures(tsc_hz));
                bar.inc(1);
            }
        }
        // This is read while the load runs, because only pages that are granted at that time are
        // accessible.
        if access.is_none() {
            access = Some(query_access(lane.machine()?)?);
        }
    }
    bar.finish_and_clear();
    let mut found = Findings {
        figures: samples.figures(PLAN),
        access: access.unwrap_or_default(),
        notes: Vec::new(),
    };
    let up_ms = lane.machine()?.up_ms();
    add_access(&mut found, up_ms);
    Ok(found)
}
