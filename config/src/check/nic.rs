//! Checks of the driver domain's NICs that depend on other parts of a configuration.

use crate::domain::{FRAME_EXTRA_BYTES, GrantMode, Offloads, VmqConfig};
use crate::findings::Findings;
use crate::keywords;
use crate::lro::Meta;
use crate::model::Config;
use crate::nic::{NicKind, NicSection};
use crate::problem::ConfigPart;
use std::collections::BTreeMap;

pub(super) fn check(config: &Config, found: &mut Findings) {
    let mut names = BTreeMap::new();
    for (n, nic) in config.nics.iter().enumerate() {
        let part = ConfigPart::Nic(n);
        found.name(part, &nic.name);
        found.unique(part, &mut names, &nic.name, n, "[[nic]]");
        if let Some(of_nic) = nic.settings.vmq {
            vmq(config, found, part, nic, of_nic);
        }
        shared_by_workers(config, found, part, nic);
        flip(config, found, part, nic);
        nic.check(found, n);
    }
}

/// Checks that the NIC can receive into pages that change hands, which belong to a guest before and
/// after. A device that writes to buffers by itself has a fixed area for them.
fn flip(config: &Config, found: &mut Findings, part: ConfigPart, nic: &NicSection) {
    let kind = match nic.kind {
        NicKind::Xdp { .. } => "xdp",
        NicKind::Soft { .. } => "soft",
        NicKind::Vfio { .. } => "vfio",
        NicKind::Tap { .. } | NicKind::Sim(_) | NicKind::Pcap(_) | NicKind::Local { .. } => return,
    };
    if config.driver.grants == GrantMode::Flip {
        let what = format!(
            "the driver's `grants` is \"flip\", and a NIC of kind = \"{kind}\" receives into its \
             own buffers only"
        );
        let remedy = "write grants = \"flip-copy\" in [driver], or kind = \"tap\" or \"sim\"";
        found.add(part, "kind", what, remedy);
    }
}

/// Checks the requirements of dedicated queues: a NIC that has them, pages that stay mapped, and
/// buffers that fit a frame. An unsegmented frame may take several buffers.
fn vmq(config: &Config, found: &mut Findings, part: ConfigPart, nic: &NicSection, vmq: VmqConfig) {
    let wrong = "`queues` is \"vmq\"";
    match nic.kind {
        _ if nic.assigns_by_pdev() => {
            if vmq.rebalance_ms > 0 {
                let remedy =
                    "leave it out: a guest permanently has the queue that its `pdev` names";
                let what = "`vmq_rebalance_ms` is set";
                found.add(part, "vmq_rebalance_ms", what, remedy);
            }
        }
        NicKind::Tap { .. } | NicKind::Sim(_) | NicKind::Soft { .. } | NicKind::Xdp { .. } => {}
        NicKind::Pcap(_) | NicKind::Local { .. } | NicKind::Vfio { .. } => {
            let remedy =
                "leave it out, or use a NIC of kind = \"tap\", \"xdp\", \"sim\" or \"soft\"";
            found.add(part, "queues", wrong, remedy);
        }
    }
    // The rate of a cable applies to all queues.
    if nic.settings.rate_mbps.is_some() && !matches!(nic.kind, NicKind::Soft { .. }) {
        let what = format!("{wrong} and `rate_mbps` is set");
        let remedy = "leave one of them out: the token bucket is in front of the shared queue";
        found.add(part, "queues", what, remedy);
    }
    let grants = config.driver.grants;
    if grants == GrantMode::Copy || grants.exchanges_pages() {
        let grants = keywords::name(&grants);
        let what = format!("{wrong} and the driver's `grants` is \"{grants}\"");
        let remedy = "write another `grants` in [driver], or queues = \"shared\" here: a NIC can \
                      only write to pages that the driver domain can access";
        found.add(part, "queues", what, remedy);
    }
    if config.buffers.headroom > 0 {
        let what = format!("{wrong} and `headroom` is set in [buffers]");
        let remedy = "leave one of them out: a queue writes frames to the start of a buffer";
        found.add(part, "queues", what, remedy);
    }
    if let NicKind::Tap { offloads, .. } = nic.kind
        && offloads == Offloads::Tso
    {
        if config.lro.meta == Meta::Request {
            let what = format!("{wrong}, `offloads` is \"tso\" and `meta` of [lro] is \"request\"");
            let remedy = "write meta = \"response\" in [lro], or another value of `offloads` here: \
                          a segment fills the guest's buffers before the driver domain could \
                          reserve one for its size";
            found.add(part, "queues", what, remedy);
        }
        return;
    }
    let buffer = config.buffers.size.bytes() as u32;
    if nic.settings.mtu.saturating_add(FRAME_EXTRA_BYTES) > buffer {
        let what = format!("{wrong} and `mtu` is {}", nic.settings.mtu);
        let remedy = format!(
            "a frame must fit one of the guests' buffers: write an `mtu` of at most {}, or \
             size = \"full\" in [buffers]",
            buffer - FRAME_EXTRA_BYTES
        );
        found.add(part, "queues", what, remedy);
    }
}

/// Checks that the kernel can spread the NIC's packets over the queues of several workers.
fn shared_by_workers(config: &Config, found: &mut Findings, part: ConfigPart, nic: &NicSection) {
    let workers = config.driver.workers;
    if workers < 2 {
        return;
    }
    if !matches!(nic.kind, NicKind::Tap { .. } | NicKind::Local { .. }) {
        let what = format!("the driver has {workers} `workers`, but this NIC has one queue");
        let remedy = "write kind = \"tap\" or \"local\", or workers = 1 in [driver]";
        found.add(part, "kind", what, remedy);
    }
    if nic.settings.vmq.is_some() {
        let what = format!("`queues` is \"vmq\", and the driver has {workers} `workers`");
        let remedy = "write queues = \"shared\", or workers = 1 in [driver]: a NIC either directs \
                      frames to guests or spreads flows over workers";
        found.add(part, "queues", what, remedy);
    }
}
