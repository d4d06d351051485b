//! The lane through the TAP forwarder in one process.

use super::cores::Cores;
use super::ends::{GUEST, IFNAME, LaneEnds, PREFIX, WIRE, WIRE_INSIDE};
use super::path::Path;
use super::reading::Reading;
use super::{Lane, Loads};
use crate::forwarder::{self, Forwarder, ForwarderSpec};
use crate::ns::NamedNamespace;
use crate::plan::Place;
use figures::measure::CpuPart;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Sets up the lane.
///
/// # Errors
/// Returns an error if namespaces or TAPs cannot be created.
pub fn lane(place: Place, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    let ends = LaneEnds::new()?;
    let tap = |place: &NamedNamespace, address: IpAddr| {
        forwarder::side(IFNAME, &place.path(), Some(format!("{address}/{PREFIX}")))
    };
    let forwarder = Forwarder::start(&ForwarderSpec {
        taps: [tap(&ends.wire, WIRE), tap(&ends.guest, GUEST)],
        cpu: Some(cores.driver(place)),
    })?;
    let lane = Lane::new(ends, Box::new(forwarder), cores, loads)?;
    Ok(lane.with_remark(Some(WIRE_INSIDE.to_owned())))
}

impl Path for Forwarder {
    fn parts(&self) -> Vec<(CpuPart, Vec<i32>)> {
        vec![("driver", vec![self.pid()])]
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        let drops = self.counters()?.drops as f64;
        Ok(Reading {
            sums: BTreeMap::from([("drops.not_taken".to_owned(), drops)]),
            ..Reading::default()
        })
    }
}
