//! Dedicated queues: what a guest's interface names as its `pdev`.

use super::findings::Findings;
use crate::domain::{GrantMode, Vmq};
use crate::model::{Config, Kind, Queues};
use crate::pdev::Pdev;
use crate::problem::Place;
use std::collections::BTreeMap;

pub(super) fn check(config: &Config, found: &mut Findings) {
    let mut taken = BTreeMap::new();
    for (g, guest) in config.guests.iter().enumerate() {
        for (v, vif) in guest.vifs.iter().enumerate() {
            let Some(pdev) = &vif.pdev else { continue };
            let place = Place::Vif(g, v);
            if let Some((what, remedy)) = contradiction(pdev, config, &taken) {
                found.add(place, "pdev", what, remedy);
            }
            taken.insert(pdev, place.to_string());
        }
    }
}

/// What a queue of this name cannot be in this machine: what, remedy. `taken`:
/// interfaces by their queues.
fn contradiction(
    pdev: &Pdev,
    config: &Config,
    taken: &BTreeMap<&Pdev, String>,
) -> Option<(String, String)> {
    let nic = config.nics.iter().find(|nic| nic.name == pdev.nic);
    let Some(nic) = nic else {
        let what = format!("`pdev` is \"{pdev}\", and there is no NIC {}", pdev.nic);
        return Some((what, "write the `name` of a [[nic]]".into()));
    };
    let queues = match (&nic.kind, nic.queues) {
        (Kind::Xdp { .. }, Queues::Vmq(Vmq { queues, .. })) => queues,
        _ => {
            let what = format!("`pdev` is \"{pdev}\", and this NIC has no queues to be given");
            let remedy = "leave it out, or use a NIC of kind = \"xdp\" with queues = \"vmq\" \
                          (those of a TAP go to the busiest guests by themselves)";
            return Some((what, remedy.into()));
        }
    };
    if !(1..=queues).contains(&pdev.queue) {
        let what = format!("`pdev` is \"{pdev}\"");
        let remedy = format!(
            "the queues of {} are 1 to {queues} (`vmq_queues`)",
            pdev.nic
        );
        return Some((what, remedy));
    }
    if let Some(other) = taken.get(pdev) {
        let what = format!("the queue \"{pdev}\" is that of {other} too");
        return Some((what, "give each interface its own".into()));
    }
    let with = |what: &str| format!("there is a `pdev`, and {what}");
    if config.driver.grants != GrantMode::Counted {
        let what = with("the driver's `grants` are not \"counted\"");
        let remedy = "write grants = \"counted\" in [driver]: only so the driver domain is told \
                      which frame of the guest's a posted page is, and counts what it has";
        return Some((what, remedy.into()));
    }
    let buffers = config.buffers;
    if buffers.spare > 0 || buffers.release_threshold.is_some() {
        let what = with("[buffers] has `spare` or `release_threshold`");
        let remedy = "leave one of them out: the kernel writes to one pool of buffers as long \
                      as there is the queue";
        return Some((what, remedy.into()));
    }
    None
}
