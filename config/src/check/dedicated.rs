//! Checks of dedicated queues: the `pdev` of guest interfaces.

use super::findings::Findings;
use crate::domain::{GrantMode, Vmq};
use crate::model::{Config, NicKind};
use crate::pdev::Pdev;
use crate::problem::ConfigPart;
use std::collections::BTreeMap;

pub(super) fn check(config: &Config, found: &mut Findings) {
    let mut taken = BTreeMap::new();
    for (g, guest) in config.guests.iter().enumerate() {
        for (v, vif) in guest.vifs.iter().enumerate() {
            let Some(pdev) = &vif.pdev else { continue };
            let part = ConfigPart::Vif(g, v);
            if let Some((what, remedy)) = contradiction(pdev, config, &taken) {
                found.add(part, "pdev", what, remedy);
            }
            taken.insert(pdev, part.to_string());
        }
    }
}

/// Returns why a guest cannot have the queue of this name in this machine, and a remedy. `taken`
/// are the interfaces that already have queues.
fn contradiction(
    pdev: &Pdev,
    config: &Config,
    taken: &BTreeMap<&Pdev, String>,
) -> Option<(String, String)> {
    let nic = config.nics.iter().find(|nic| nic.name == pdev.nic);
    let Some(nic) = nic else {
        let what = format!("`pdev` is \"{pdev}\", but no NIC is named {}", pdev.nic);
        return Some((what, "write the `name` of a [[nic]]".into()));
    };
    let queues = match (&nic.kind, nic.vmq) {
        (NicKind::Xdp { .. }, Some(Vmq { queues, .. })) => queues,
        _ => {
            let what = format!("`pdev` is \"{pdev}\", but this NIC has no dedicated queues");
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
        let what = format!("the queue \"{pdev}\" is also that of {other}");
        return Some((what, "give each interface another queue".into()));
    }
    let with = |what: &str| format!("`pdev` is set, but {what}");
    if config.driver.grants != GrantMode::Counted {
        let what = with("the driver's `grants` are not \"counted\"");
        let remedy = "write grants = \"counted\" in [driver]: only then does the driver domain \
                      know the guest's frame of a posted page, and count its uses";
        return Some((what, remedy.into()));
    }
    let buffers = config.buffers;
    if buffers.spare > 0 || buffers.release_threshold.is_some() {
        let what = with("[buffers] has `spare` or `release_threshold`");
        let remedy = "leave one of them out: the kernel writes to a fixed pool of buffers as long \
                      as the queue exists";
        return Some((what, remedy.into()));
    }
    None
}
