//! A guest domain.

use super::devices::{DeviceList, tap};
use super::encode::json;
use super::polling::PollingConfig;
use crate::domain::{EndpointConfig, GuestConfig, GuestVif, TapQueues, VhostConfig};
use crate::guest::{Endpoint, GuestSection, Vif};
use crate::kernel_port::KernelPort;
use crate::model::Config;
use crate::sizes::{
    file_pages, flip_pages, grant_entries, guest_frames, pool_pages, queues, rx_pool, sum,
    worker_name,
};
use abi::machine::{Connection, Device, DomainSpec, Ipv6Settings, Program, Tap};

/// Returns the domain of guest number `g`.
pub(super) fn domain(config: &Config, g: usize, guest: &GuestSection) -> DomainSpec {
    let mut devices = DeviceList::default();
    let vifs = guest.vifs.iter().enumerate();
    let vifs = vifs
        .map(|(v, vif)| guest_vif(config, (g, v), vif, &mut devices))
        .collect();
    let spin = PollingConfig::of_guest(config, guest);
    let config_text = GuestConfig {
        vifs,
        spin_us: spin.us,
        yields: spin.yields,
        adapts: spin.adapts,
        ledger: config.driver.ledger,
        lro: config.lro,
    };
    DomainSpec {
        name: guest.name.clone(),
        program: Program::Guest,
        frames: guest_frames(config, guest),
        grant_entries: grant_entries(config, guest),
        // No domain grants pages to a guest. It maps only exchanged pages, if any.
        window_slots: flip_pages(config).saturating_mul(queues(config, guest)),
        collateral: 0,
        foreign_pages: foreign_pages(guest),
        weight: sum(guest.vifs.iter().map(|vif| vif.settings.weight)).max(1),
        restart_pause_ms: guest.restart.then_some(config.driver.restart_pause_ms),
        cpus: guest.cpus.clone(),
        devices: devices.0,
        config: json(&config_text),
    }
}

/// Returns the connections of a guest, in the order in which the guest numbers them.
pub(super) fn connections(
    config: &Config,
    guest: &GuestSection,
) -> impl Iterator<Item = Connection> {
    let workers = 0..config.driver.workers.max(1);
    let handles = 0..guest.vifs.len() as u16;
    let ends = handles.flat_map(move |handle| workers.clone().map(move |worker| (worker, handle)));
    ends.map(move |(worker, handle)| Connection {
        backend: worker_name(worker),
        frontend: guest.name.clone(),
        handle,
    })
}

/// Returns the number of pages of virtual machines' memory that the guest may map.
fn foreign_pages(guest: &GuestSection) -> u32 {
    sum(guest.vifs.iter().map(|vif| match &vif.endpoint {
        Endpoint::VhostUser(machine) => machine.pages(),
        _ => 0,
    }))
}

/// Returns the guest's configuration of an interface, and adds its devices to `devices`.
fn guest_vif(
    config: &Config,
    (g, v): (usize, usize),
    vif: &Vif,
    devices: &mut DeviceList,
) -> GuestVif {
    let workers = config.driver.workers.max(1);
    GuestVif {
        conns: (0..workers)
            .map(|worker| v as u32 * workers + worker)
            .collect(),
        mac: config.vif_mac(g, v).map_or([0; 6], |mac| mac.0),
        mtu: vif.mtu,
        endpoint: endpoint(config, (g, v), vif, devices),
        ring_order: config.ring_order(),
        ring_format: config.ring.format,
        buffers: config.buffers,
        pool_pages: pool_pages(config),
        offloads: vif.offloads.min(config.driver.offloads),
        forwards: vif.settings.forwards,
        rx_pool: vif.pdev.as_ref().map(|_| rx_pool(config, v)),
        file_pages: file_pages(vif),
    }
}

/// Returns the IPv6 settings of a guest's interface. Unset ones are 0 if it has addresses;
/// otherwise it configures itself by the kernel's defaults.
fn ipv6(port: &KernelPort) -> Ipv6Settings {
    let given = port.ipv6;
    let usual = match port.addresses.is_empty() {
        true => Ipv6Settings::default(),
        false => Ipv6Settings::NO_SOLICITATION,
    };
    Ipv6Settings {
        accept_ra: given.accept_ra.or(usual.accept_ra),
        accept_dad: given.accept_dad.or(usual.accept_dad),
        router_solicitations: given.router_solicitations.or(usual.router_solicitations),
    }
}

fn endpoint(
    config: &Config,
    (g, v): (usize, usize),
    vif: &Vif,
    devices: &mut DeviceList,
) -> EndpointConfig {
    match &vif.endpoint {
        Endpoint::Tap(port) => {
            let workers = config.driver.workers.max(1);
            let mac = config.vif_mac(g, v).map_or([0; 6], |mac| mac.0);
            // The kernel may leave to the vif any offload that the vif and the driver are
            // configured for. The netfront performs those that the driver does not accept.
            let offloads = vif.offloads.min(config.driver.offloads);
            let tap = tap(port, config.vif_ifname(g, v), mac, vif.mtu, offloads);
            let tap = Tap {
                vnet_header: true,
                persistent: port.persistent.then(|| config.name.clone()),
                ipv6: Some(ipv6(port)),
                ..tap
            };
            let queue = |worker| devices.share(tap.clone(), worker, workers);
            EndpointConfig::Tap(TapQueues {
                devices: (0..workers).map(queue).collect(),
            })
        }
        Endpoint::Stack { station } => EndpointConfig::Stack {
            station: station.clone(),
        },
        Endpoint::Sink { touch } => EndpointConfig::Sink { touch: *touch },
        Endpoint::Source(source) => EndpointConfig::Source(*source),
        Endpoint::Echo {} => EndpointConfig::Echo {},
        Endpoint::Pcap(files) => EndpointConfig::Pcap(devices.files(files)),
        Endpoint::VhostUser(machine) => EndpointConfig::VhostUser(VhostConfig {
            device: devices.add(Device::VhostUser(machine.device())),
            client: machine.client,
            queue_pairs: machine.queue_pairs(config.driver.workers),
            memory_max: machine.memory_bytes(),
        }),
    }
}
