//! Configuration of a lane's machine.

use super::LOAD_PORTS;
use super::cores::Cores;
use super::ends::{GUEST, IFNAME, LaneEnds, PREFIX, WIRE};
use super::running::{RIVAL, unique_name};
use crate::ns::NamedNamespace;
use crate::plan::{Gro, Mechanisms, Place, PollMode, Topology, WireNic, WireOffload, WireSpeed};
use config::domain::{self, Offloads, Rings, VmqConfig};
use config::lro::Meta;
use config::rule::{FirewallRule, PortRange, RuleDirection, RuleState};
use config::{
    Cidr, Config, DevicePlace, Endpoint, GuestSection, KernelPort, NicKind, NicSection, Pdev,
    SoftWire, Vif, XdpWire,
};
use std::net::IpAddr;
use std::path::PathBuf;

/// The wire of a machine.
#[derive(Clone, Copy, Debug)]
pub struct OnWire<'a> {
    /// Device.
    pub nic: WireNic,
    /// Speed.
    pub speed: &'a WireSpeed,
    /// Interrupt moderation.
    pub moderation: PollMode,
    /// Aggregation at the wire's end, if its TCP stack runs on the wire's core as on a separate
    /// machine.
    pub apart: Option<Gro>,
    /// Work that the ends of a TAP leave to each other.
    pub offload: WireOffload,
}

impl<'a> OnWire<'a> {
    /// Returns a TAP that the driver polls as soon as a frame arrives.
    #[must_use]
    pub fn tap(speed: &'a WireSpeed) -> Self {
        Self {
            nic: WireNic::Tap,
            speed,
            moderation: PollMode::Event,
            apart: None,
            offload: WireOffload::None,
        }
    }
}

/// Returns the configuration of a lane's machine: one wire, and one guest on a TAP.
#[must_use]
pub fn config(
    wire: PathBuf,
    guest: PathBuf,
    near: OnWire<'_>,
    place: Place,
    cores: Cores,
) -> Config {
    let driver_core = cores.driver(place);
    let port = |netns: PathBuf, address: IpAddr| KernelPort {
        ifname: Some(IFNAME.to_owned()),
        netns: Some(netns.display().to_string()),
        addresses: vec![Cidr {
            address,
            prefix: PREFIX,
        }],
        ..KernelPort::default()
    };
    let mut config = Config {
        name: unique_name("lane"),
        nics: vec![NicSection::new(
            "wire",
            match near.nic {
                WireNic::Tap => NicKind::Tap {
                    port: port(wire, WIRE),
                    // Without offloads the TAP carries MTU-sized frames with checksums, like a real
                    // wire.
                    offloads: match near.offload {
                        WireOffload::None => Offloads::None,
                        WireOffload::Checksum => Offloads::Checksum,
                        WireOffload::Segments => Offloads::Tso,
                    },
                    napi_threads: near.apart == Some(Gro::Napi),
                },
                WireNic::Xdp => NicKind::Xdp {
                    wire: XdpWire::Veth(port(wire, WIRE)),
                },
                WireNic::Soft => NicKind::Soft {
                    wire: SoftWire::Tap(port(wire, WIRE)),
                    rings: Rings::default(),
                    place: DevicePlace::Domain,
                    // The device represents hardware, which uses no CPU time of the machine under
                    // test.
                    cpus: vec![cores.wire],
                    lro: false,
                    header_split: false,
                },
            },
        )],
        guests: vec![GuestSection {
            name: "guest".to_owned(),
            cpus: vec![cores.guest],
            spin_us: NO_SPIN,
            vifs: vec![Vif::new(Endpoint::Tap(port(guest, GUEST)))],
            restart: false,
        }],
        ..Config::default()
    };
    for nic in &mut config.nics {
        nic.settings.rate_mbps = near.speed.mbps;
        nic.settings.moderation = match near.moderation {
            PollMode::Event => domain::ModerationConfig::Event,
            PollMode::Spin => domain::ModerationConfig::Spin,
            PollMode::Tick(us) => domain::ModerationConfig::Tick(us),
        };
    }
    config.driver.cpus = vec![driver_core];
    config.driver.spin_us = NO_SPIN;
    // A domain that exits in a window invalidates the window; a restart would hide that.
    config.driver.restart = false;
    config
}

/// Domains do not spin: on two cores every domain shares its core with a process of a socket, which
/// a spinning domain would block.
pub(super) const NO_SPIN: Option<u32> = Some(0);

/// Applies a topology to the default machine with one guest.
pub(super) fn apply(
    topology: Topology,
    ends: &LaneEnds,
    place: Place,
    cores: Cores,
    config: &mut Config,
) {
    apply_mechanisms(topology, place, cores, config);
    add_guests(topology, ends, config);
    if topology.mechanisms.vmq {
        dedicate_queues(topology.guests, config);
    }
}

/// Returns a rule that admits new flows to the ports of loads, but no segment of an unknown
/// connection.
fn allow_loads() -> FirewallRule {
    FirewallRule {
        direction: Some(RuleDirection::Out),
        destination_ports: Some(PortRange(LOAD_PORTS)),
        state: Some(RuleState::New),
        ..FirewallRule::any("loads", true)
    }
}

/// Applies the mechanisms of a topology.
pub(super) fn apply_mechanisms(
    topology: Topology,
    place: Place,
    cores: Cores,
    config: &mut Config,
) {
    let Mechanisms {
        grants,
        vmq: _,
        buffers,
        to_guest,
        wire_queue,
        interrupt_us,
        wire_lro,
        wire_split,
        prefetch,
        headroom,
        spare,
        release_threshold,
        meta,
        offloads,
        workers,
        rules,
        stateful,
    } = topology.mechanisms;
    if topology.restarts {
        config.driver.restart = true;
        config.driver.restart_pause_ms = 0;
        for guest in &mut config.guests {
            guest.restart = true;
        }
    }
    if let Some(workers) = workers {
        config.driver.workers = workers;
        if place == Place::Split {
            config.driver.cpus = vec![cores.wire, cores.guest];
            config.driver.cpus.truncate(workers as usize);
        }
    }
    config.driver.grants = grants;
    config.buffers.size = buffers;
    config.buffers.to_guest = to_guest.unwrap_or(config.buffers.to_guest);
    config.buffers.spare = spare;
    config.buffers.release_threshold = release_threshold;
    config.lro.meta = meta.unwrap_or(Meta::Response);
    config.buffers.headroom = headroom;
    config.buffers.prefetch = prefetch.unwrap_or(config.buffers.prefetch);
    for nic in &mut config.nics {
        if let NicKind::Soft {
            rings,
            lro,
            header_split,
            ..
        } = &mut nic.kind
        {
            rings.interrupt_us = interrupt_us;
            *lro = wire_lro;
            *header_split = wire_split;
        }
        if let Some(packets) = wire_queue {
            set_queue_length(nic, packets);
        }
    }
    for vif in config.guests.iter_mut().flat_map(|guest| &mut guest.vifs) {
        vif.settings.rules = (1..=rules).map(unmatched_rule).collect();
        vif.settings.rules.extend(stateful.then(allow_loads));
        vif.stateful = stateful;
        vif.offloads = offloads;
    }
}

/// Sets the number of packets that the NIC's queue holds.
fn set_queue_length(nic: &mut NicSection, packets: u32) {
    match &mut nic.kind {
        NicKind::Soft { rings, .. } => {
            rings.descriptors = packets;
            // Frames that wait for guests also need buffers.
            nic.settings.buffers = nic.settings.buffers.max(2 * packets);
        }
        NicKind::Tap { port, .. } => {
            nic.settings.buffers = packets;
            port.tx_queue = packets;
        }
        _ => nic.settings.buffers = packets,
    }
}

/// Adds further wires like the first one, each with a separate end.
pub(super) fn add_wires(ends: &LaneEnds, config: &mut Config) {
    let first = config.nics.first().cloned();
    for (number, (namespace, address)) in ends.wires().enumerate().skip(1) {
        let Some(mut nic) = first.clone() else {
            break;
        };
        nic.name = format!("wire{number}");
        if let NicKind::Tap { port, .. }
        | NicKind::Soft {
            wire: SoftWire::Tap(port),
            ..
        }
        | NicKind::Xdp {
            wire: XdpWire::Veth(port),
        } = &mut nic.kind
        {
            place(port, namespace, address);
        }
        config.nics.push(nic);
    }
}

/// Places a kernel interface in a namespace, with an address.
fn place(port: &mut KernelPort, namespace: &NamedNamespace, address: IpAddr) {
    port.netns = Some(namespace.path().display().to_string());
    port.addresses = vec![Cidr {
        address,
        prefix: PREFIX,
    }];
}

/// Adds further guests like the first one, each with a separate end.
fn add_guests(topology: Topology, ends: &LaneEnds, config: &mut Config) {
    let first = config.guests.first().cloned();
    for (number, (namespace, address)) in ends.guests().enumerate().skip(1) {
        let Some(mut guest) = first.clone() else {
            break;
        };
        guest.name = match number < topology.guests as usize {
            true => format!("guest{number}"),
            false => format!("{RIVAL}{number}"),
        };
        for vif in &mut guest.vifs {
            if let Endpoint::Tap(port) = &mut vif.endpoint {
                place(port, namespace, address);
            }
        }
        config.guests.push(guest);
    }
}

/// Dedicates a queue of the wire to each guest.
pub(super) fn dedicate_queues(guests: u32, config: &mut Config) {
    for nic in &mut config.nics {
        nic.settings.vmq = Some(VmqConfig {
            queues: guests,
            // Every guest has a queue, so the driver need not reassign any.
            rebalance_ms: 0,
        });
    }
    let wire = config.nics.first();
    let Some(wire) = wire.filter(|nic| nic.assigns_by_pdev()) else {
        return;
    };
    // The driver does not assign these queues by load, because each interface names its queue.
    let name = wire.name.clone();
    for (queue, guest) in (1..).zip(&mut config.guests) {
        let pdev = Pdev {
            nic: name.clone(),
            queue,
        };
        for vif in &mut guest.vifs {
            vif.pdev = Some(pdev.clone());
        }
    }
}

/// Returns a firewall rule that compares an address and a port and matches no frame of a load.
fn unmatched_rule(number: u16) -> FirewallRule {
    FirewallRule {
        direction: Some(RuleDirection::Out),
        source: Some(Cidr {
            address: WIRE,
            prefix: PREFIX,
        }),
        // No load uses such a low port.
        destination_ports: Some(PortRange(number..=number)),
        ..FirewallRule::any(number.to_string(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_of_lanes_are_valid() {
        let cores = Cores { wire: 0, guest: 1 };
        for place in [Place::OneCore, Place::Split] {
            let config = config(
                "/proc/1/ns/net".into(),
                "/proc/2/ns/net".into(),
                OnWire::tap(&WireSpeed::unbounded()),
                place,
                cores,
            );
            config.machine().unwrap();
        }
    }
}
