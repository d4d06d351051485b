//! The lane through the one-process TAP forwarder.

use super::{Between, Cores, Ends, GUEST, IFNAME, Lane, PREFIX, Place, Reading, WIRE};
use crate::forwarder::{Forwarder, Spec};
use crate::measure::Part;
use abi::machine::Tap;
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
        mtu: 1500,
        vnet_header: false,
        checksum: false,
        tso: false,
        // What the kernel gives a TAP by itself.
        tx_queue: 500,
    }
}

/// Sets one up.
///
/// # Errors
/// If namespaces or TAPs cannot be made.
pub fn lane(
    column: &str,
    place: Place,
    cores: Cores,
    request_bytes: usize,
) -> anyhow::Result<Lane> {
    let ends = Ends::new()?;
    let forwarder = Forwarder::start(&Spec {
        taps: [tap(ends.wire.path(), WIRE), tap(ends.guest.path(), GUEST)],
        cpu: Some(cores.driver(place)),
    })?;
    let keys = BTreeMap::from([("place".to_owned(), place.name().to_owned())]);
    Lane::new(
        column,
        keys,
        ends,
        Box::new(forwarder),
        cores,
        request_bytes,
    )
}

impl Between for Forwarder {
    fn parts(&self) -> Vec<(Part, Vec<i32>)> {
        vec![("driver", vec![self.pid()])]
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        let drops = self.counters()?.drops as f64;
        Ok(Reading {
            sums: BTreeMap::from([("drops.not_taken".to_owned(), drops)]),
        })
    }
}
