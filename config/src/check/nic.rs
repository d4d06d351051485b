//! Checks of the driver domain's NICs.

use super::findings::Findings;
use super::rule::rules;
use super::station::{destination, ifname, netns, port, station};
use super::uplink;
use crate::domain::{
    BUFFER_BYTES, FRAME_EXTRA_BYTES, GrantMode, ModerationConfig, Offloads, PCI_MTU_MAX, Rings,
    VmqConfig, XDP_MTU_MAX,
};
use crate::keywords;
use crate::lro::Meta;
use crate::model::{Cable, Config, DevicePlace, NicKind, NicSection, SoftWire, XdpWire};
use crate::problem::ConfigPart;
use std::collections::BTreeMap;

pub(super) fn check(config: &Config, found: &mut Findings) {
    let mut names = BTreeMap::new();
    for (n, nic) in config.nics.iter().enumerate() {
        let part = ConfigPart::Nic(n);
        found.name(part, &nic.name);
        found.unique(part, &mut names, &nic.name, n, "[[nic]]");
        found.range(part, "mtu", nic.mtu, 576..=9000);
        found.rate(part, "rate_mbps", nic.rate_mbps);
        let burst = nic.mtu.saturating_add(18)..=64 << 20;
        found.range(part, "burst_bytes", nic.burst_bytes, burst);
        found.range(part, "buffers", nic.buffers, 64..=65_536);
        if let ModerationConfig::Tick(tick) = nic.moderation {
            found.range(part, "tick_us", tick, 1..=100_000);
        }
        if let Some(of_nic) = nic.vmq {
            vmq(config, found, part, nic, of_nic);
        }
        shared_by_workers(config, found, part, nic);
        rules(found, part, &nic.rules, |r| ConfigPart::NicRule(n, r));
        kind(config, found, n, nic);
        uplink::check(found, part, nic);
    }
}

fn kind(config: &Config, found: &mut Findings, n: usize, nic: &NicSection) {
    let part = ConfigPart::Nic(n);
    if let Some(of_nic) = nic.kind.port() {
        port(found, part, of_nic, config.nic_ifname(n));
    }
    match &nic.kind {
        NicKind::Tap { .. } => {}
        NicKind::Xdp { wire } => {
            if nic.mtu > XDP_MTU_MAX {
                let what = format!("`kind` is \"xdp\" and `mtu` is {}", nic.mtu);
                let remedy = format!(
                    "a frame must fit one buffer, of which the kernel keeps 256 bytes: write an \
                     `mtu` of at most {XDP_MTU_MAX}"
                );
                found.add(part, "mtu", what, remedy);
            }
            if let XdpWire::Netdev { name, netns: of } = wire {
                ifname(found, part, "netdev", name);
                netns(found, part, of.as_deref());
            }
        }
        NicKind::Local { .. } => {}
        NicKind::Sim(of_nic) => cable(found, n, of_nic),
        NicKind::Soft {
            wire,
            rings,
            place,
            cpus,
            lro,
            header_split,
        } => {
            match wire {
                SoftWire::Cable(of_nic) => cable(found, n, of_nic),
                SoftWire::Tap(_) | SoftWire::Source(_) if *place == DevicePlace::Driver => {
                    let word = match wire {
                        SoftWire::Tap(_) => "tap",
                        _ => "source",
                    };
                    let what = format!("`wire` is \"{word}\" and `device` is \"driver\"");
                    let remedy = "leave `device` out: only a device domain has such a wire";
                    found.add(part, "wire", what, remedy);
                }
                SoftWire::Tap(_) => {}
                SoftWire::Source(source) => {
                    let size = 60..=nic.mtu.saturating_add(14);
                    found.range(part, "size", source.size, size);
                    destination(found, part, source.to);
                }
            }
            ring(found, part, nic, *rings);
            found.cpus(part, cpus);
            if !cpus.is_empty() && *place == DevicePlace::Driver {
                let what = "`cpus` is set and `device` is \"driver\"";
                let remedy = "leave one of them out: the device runs on the driver domain's CPUs";
                found.add(part, "cpus", what, remedy);
            }
            if *lro && *place == DevicePlace::Driver {
                let what = "`lro` is true and `device` is \"driver\"";
                let remedy = "leave one of them out: [lro] merges frames in the driver domain";
                found.add(part, "lro", what, remedy);
            }
            if *header_split {
                header_split_of(found, part, nic, (*place, *lro));
            }
        }
        NicKind::Vfio {
            device,
            descriptors: of_nic,
        } => pci(found, part, nic, (device, *of_nic)),
        NicKind::Pcap(files) => found.files(part, files),
    }
}

/// Checks that a device can split headers, which requires that each frame fits one buffer.
fn header_split_of(
    found: &mut Findings,
    part: ConfigPart,
    nic: &NicSection,
    (place, lro): (DevicePlace, bool),
) {
    let most = BUFFER_BYTES - FRAME_EXTRA_BYTES;
    let (what, remedy) = if place == DevicePlace::Driver {
        let remedy = "leave one of them out: only a device domain splits headers of all frames";
        ("`device` is \"driver\"".to_owned(), remedy.to_owned())
    } else if lro {
        let remedy = "leave one of them out: a merged frame has several buffers, without headers";
        ("`lro` is true".to_owned(), remedy.to_owned())
    } else if nic.mtu > most {
        let remedy = format!("a frame must fit one buffer: write an `mtu` of at most {most}");
        (format!("`mtu` is {}", nic.mtu), remedy)
    } else {
        return;
    };
    let what = format!("`header_split` is true and {what}");
    found.add(part, "header_split", what, remedy);
}

/// Checks a PCI device: its address, its queues, and that a frame fits one buffer.
fn pci(found: &mut Findings, part: ConfigPart, nic: &NicSection, (device, entries): (&str, u32)) {
    if !abi::pci::is_address(device) {
        let remedy = "write it as `lspci -D` does, like device = \"0000:00:03.0\"";
        found.add(part, "device", format!("`device` is \"{device}\""), remedy);
    }
    descriptors(found, part, nic, entries);
    if nic.mtu > PCI_MTU_MAX {
        let what = format!("`kind` is \"vfio\" and `mtu` is {}", nic.mtu);
        let remedy =
            format!("a frame must fit one buffer: write an `mtu` of at most {PCI_MTU_MAX}");
        found.add(part, "mtu", what, remedy);
    }
}

fn cable(found: &mut Findings, n: usize, cable: &Cable) {
    let (part, loss) = (ConfigPart::Nic(n), cable.loss);
    found.range(part, "delay_us", cable.delay_us, 0..=10_000_000);
    if !(0.0..=1.0).contains(&loss) {
        let remedy = "write a share from 0.0 to 1.0";
        found.add(part, "loss", format!("`loss` is {loss}"), remedy);
    }
    station(found, part, &cable.station, None, |app| {
        ConfigPart::NicApp(n, app)
    });
}

/// Checks the rings of a device, and its interrupt moderation.
fn ring(found: &mut Findings, part: ConfigPart, nic: &NicSection, rings: Rings) {
    let Rings {
        descriptors,
        interrupt_us,
        interrupt_frames,
    } = rings;
    self::descriptors(found, part, nic, descriptors);
    found.range(part, "interrupt_us", interrupt_us, 0..=10_000);
    found.range(part, "interrupt_frames", interrupt_frames, 0..=4096);
    if interrupt_us > 0 && nic.moderation != ModerationConfig::Event {
        let what = "`interrupt_us` is set and `moderation` is not \"event\"";
        let remedy = "leave one of them out: only \"event\" waits for interrupts";
        found.add(part, "interrupt_us", what, remedy);
    }
}

/// Checks the entries of a device's queues.
fn descriptors(found: &mut Findings, part: ConfigPart, nic: &NicSection, descriptors: u32) {
    let wrong = format!("`descriptors` is {descriptors}");
    if !(64..=4096).contains(&descriptors) || !descriptors.is_power_of_two() {
        let remedy = "write 64, 128, 256, 512, 1024, 2048 or 4096";
        found.add(part, "descriptors", wrong, remedy);
    } else if descriptors > nic.buffers / 2 {
        let what = format!("{wrong} and `buffers` is {}", nic.buffers);
        let remedy = format!(
            "write `buffers` of at least {}: frames that wait for guests need buffers, too",
            2 * descriptors
        );
        found.add(part, "descriptors", what, remedy);
    }
}

/// Checks the requirements of dedicated queues: a NIC that has them, pages that stay mapped, and
/// buffers that fit a frame. An unsegmented frame may take several buffers.
fn vmq(config: &Config, found: &mut Findings, part: ConfigPart, nic: &NicSection, vmq: VmqConfig) {
    found.range(part, "vmq_queues", vmq.queues, 1..=64);
    found.range(part, "vmq_rebalance_ms", vmq.rebalance_ms, 0..=60_000);
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
    if nic.rate_mbps.is_some() && !matches!(nic.kind, NicKind::Soft { .. }) {
        let what = format!("{wrong} and `rate_mbps` is set");
        let remedy = "leave one of them out: the token bucket is in front of the shared queue";
        found.add(part, "queues", what, remedy);
    }
    let grants = config.driver.grants;
    if let GrantMode::Copy | GrantMode::Flip = grants {
        let grants = keywords::name(&grants);
        let what = format!("{wrong} and the driver's `grants` is \"{grants}\"");
        let remedy = "write another `grants` in [driver], or queues = \"shared\" here: a NIC can \
                      only write to pages that the driver domain can access";
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
    if nic.mtu.saturating_add(FRAME_EXTRA_BYTES) > buffer {
        let what = format!("{wrong} and `mtu` is {}", nic.mtu);
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
    if nic.vmq.is_some() {
        let what = format!("`queues` is \"vmq\", and the driver has {workers} `workers`");
        let remedy = "write queues = \"shared\", or workers = 1 in [driver]: a NIC either directs \
                      frames to guests or spreads flows over workers";
        found.add(part, "queues", what, remedy);
    }
}
