//! The lane through the one-process TAP forwarder.

use super::cores::Cores;
use super::ends::{Ends, GUEST, IFNAME, PREFIX, WIRE, WIRE_INSIDE};
use super::path::Path;
use super::reading::Reading;
use super::{Lane, Loads};
use crate::forwarder::{Forwarder, ForwarderSpec};
use crate::plan::Place;
use abi::machine::Tap;
use figures::measure::Part;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

/// A TAP without offloads at one end of a lane.
fn tap(netns: PathBuf, address: IpAddr) -> Tap {
    Tap {
        ifname: IFNAME.to_owned(),
        netns: Some(netns.display().to_string()),
        mac: None,
        addresses: vec![format!("{address}/{PREFIX}")],
        gateway: None,
        routes: Vec::new(),
        mtu: 1500,
        vnet_header: false,
        checksum: false,
        tso: false,
        // What the kernel gives a TAP by itself.
        tx_queue: 500,
        queues: 0,
        shares: 0,
        uplink: None,
        persistent: None,
    }
}

/// Sets one up.
///
/// # Errors
/// If namespaces or TAPs cannot be made.
pub fn lane(place: Place, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    let ends = Ends::new()?;
    let forwarder = Forwarder::start(&ForwarderSpec {
        taps: [tap(ends.wire.path(), WIRE), tap(ends.guest.path(), GUEST)],
        cpu: Some(cores.driver(place)),
    })?;
    let lane = Lane::new(ends, Box::new(forwarder), cores, loads)?;
    Ok(lane.remarked(Some(WIRE_INSIDE.to_owned())))
}

impl Path for Forwarder {
    fn parts(&self) -> Vec<(Part, Vec<i32>)> {
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
