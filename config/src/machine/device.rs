//! The domain of a NIC's device.

use super::dedicated::slots_of_guests;
use super::devices::{DeviceList, tap};
use super::encode::json;
use super::nic::Nics;
use crate::domain::{DeviceConfig, Offloads, WireConfig};
use crate::model::Config;
use crate::nic::{NicKind, NicSection};
use crate::sizes::{BUFFERS_PER_PAGE, SPARE_FRAMES, device_name, device_pages, guests_slot, sum};
use crate::soft::SoftWire;
use abi::machine::{Device, DomainSpec, Program};

/// Number of buffers of the station at the far end of a device's cable.
const STATION_BUFFERS: u32 = 256;
/// Number of buffers in which a device merges frames. They fit the frames of one turn and the held
/// frames of flows of 64 KB.
const LRO_BUFFERS: u32 = 1024;

/// Returns the domain of NIC number `n`, if its device is a domain.
pub(super) fn domain(config: &Config, n: usize, nic: &NicSection) -> Option<DomainSpec> {
    let NicKind::Soft {
        wire,
        rings,
        cpus,
        lro,
        ..
    } = &nic.kind
    else {
        return None;
    };
    if !nic.has_device_domain() {
        return None;
    }
    let settings = &nic.settings;
    let nics = Nics::build(config, 0);
    let pages = nics.nics.get(n).map_or(0, device_pages);
    let guests_slot = nics.nics.get(n).map_or(0, guests_slot);
    let guests_slots = sum(slots_of_guests(config, nic).map(|(.., slots)| slots));
    let mac = config.nic_mac(n).map_or([0; 6], |mac| mac.0);
    let mut devices = DeviceList::default();
    let (wire, buffers) = match wire {
        SoftWire::Cable(cable) => (WireConfig::Cable(cable.with_mac(mac)), STATION_BUFFERS),
        SoftWire::Tap(port) => {
            let tap = tap(
                port,
                config.nic_ifname(n),
                mac,
                settings.mtu,
                Offloads::None,
            );
            let device = devices.add(Device::Tap(tap));
            (WireConfig::Tap { device }, 0)
        }
        SoftWire::Source(source) => (WireConfig::Source(*source), 0),
    };
    let lro_buffers = if *lro { LRO_BUFFERS } else { 0 };
    let device_config = DeviceConfig {
        mtu: settings.mtu,
        rate_mbps: settings.rate_mbps,
        wire,
        rings: *rings,
        pages,
        guests_slot,
        guests_slots,
        queues: nic.dedicated_queues(),
        buffers,
        lro_buffers,
    };
    Some(DomainSpec {
        name: device_name(&nic.name),
        program: Program::Device,
        frames: sum([
            SPARE_FRAMES,
            buffers.div_ceil(BUFFERS_PER_PAGE),
            lro_buffers.div_ceil(BUFFERS_PER_PAGE),
        ]),
        grant_entries: 0,
        window_slots: sum([guests_slot, guests_slots]),
        // The driver domain may revoke all of its pages while the device uses them.
        collateral: pages,
        foreign_pages: 0,
        weight: 1,
        restart_pause_ms: config
            .driver
            .restart
            .then_some(config.driver.restart_pause_ms),
        cpus: cpus.clone(),
        devices: devices.0,
        config: json(&device_config),
    })
}
