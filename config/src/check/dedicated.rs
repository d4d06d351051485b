//! Checks of dedicated queues: the `pdev` of guest interfaces.

use crate::domain::{GrantMode, VmqConfig};
use crate::findings::Findings;
use crate::guest::Vif;
use crate::model::Config;
use crate::nic::NicSection;
use crate::pdev::Pdev;
use crate::problem::ConfigPart;
use crate::rule::RuleDirection;
use std::collections::BTreeMap;

pub(super) fn check(config: &Config, found: &mut Findings) {
    let mut taken = BTreeMap::new();
    for ((g, v), _, vif) in config.vifs() {
        let Some(pdev) = &vif.pdev else { continue };
        let part = ConfigPart::Vif(g, v);
        if let Some((what, remedy)) = contradiction(pdev, vif, config, &taken) {
            found.add(part, "pdev", what, remedy);
        }
        taken.insert(pdev, part.to_string());
    }
}

/// Returns the reason why a guest cannot have the queue of this name in this machine, and a remedy.
/// `taken` maps each assigned queue to its interface.
fn contradiction(
    pdev: &Pdev,
    vif: &Vif,
    config: &Config,
    taken: &BTreeMap<&Pdev, String>,
) -> Option<(String, String)> {
    let Some(nic) = config.nic(&pdev.nic) else {
        let what = format!("`pdev` is \"{pdev}\", but no NIC is named {}", pdev.nic);
        return Some((what, "write the `name` of a [[nic]]".into()));
    };
    let queues = match nic.settings.vmq {
        Some(VmqConfig { queues, .. }) if nic.assigns_by_pdev() => queues,
        _ => {
            let what = format!("`pdev` is \"{pdev}\", but this NIC has no dedicated queues");
            let remedy = "leave it out, or use a NIC of kind = \"xdp\" or \"soft\" with queues = \
                          \"vmq\" (the queues of a TAP are assigned to the busiest guests)";
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
    if nic.has_device_domain() {
        return before_queue(nic, vif).then(|| {
            let what = with("rules apply to frames from this NIC to this interface");
            let remedy = "leave one of them out: a device writes a frame into the guest's page \
                          before any rule is evaluated";
            (what, remedy.into())
        });
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

/// Returns whether a rule applies to frames from a NIC to a guest's interface.
fn before_queue(nic: &NicSection, vif: &Vif) -> bool {
    let mut from_wire = nic.settings.rules.iter();
    let mut to_guest = vif.all_rules().into_iter();
    from_wire.any(|rule| rule.applies_to(RuleDirection::In))
        || to_guest.any(|rule| rule.applies_to(RuleDirection::Out))
}
