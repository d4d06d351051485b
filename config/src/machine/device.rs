//! The domain of a NIC's device, and the configuration of its program.

use super::dedicated::slots_of_guests;
use super::devices::{DeviceList, tap};
use super::encode::json;
use super::nic::Nics;
use crate::cable::CableConfig;
use crate::domain::Offloads;
use crate::model::Config;
use crate::nic::{NicKind, NicSection};
use crate::sizes::{BUFFERS_PER_PAGE, SPARE_FRAMES, device_name, device_pages, guests_slot, sum};
use crate::soft::{FrameSource, Rings, SoftWire};
use abi::machine::{Device, DomainSpec, Program};
use serde::{Deserialize, Serialize};

/// Number of buffers of the station at the far end of a device's cable.
const STATION_BUFFERS: u32 = 256;
/// Number of buffers in which a device merges frames. They fit the frames of one turn and the held
/// frames of flows of 64 KB.
const LRO_BUFFERS: u32 = 1024;

/// The configuration of a device in a separate domain, whose only connection is that to the driver
/// domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Maximum transmission unit, bytes of IP.
    pub mtu: u32,
    /// Rate of its wire, megabits of frames per second; unset: unlimited.
    pub rate_mbps: Option<f64>,
    /// Its wire.
    pub wire: WireConfig,
    /// The rings.
    pub rings: Rings,
    /// The number of pages that the driver domain may grant to it.
    pub pages: u32,
    /// First slot of the part of its window that maps pages of guests with dedicated queues.
    #[serde(default)]
    pub guests_slot: u32,
    /// Number of these slots.
    #[serde(default)]
    pub guests_slots: u32,
    /// Number of dedicated queues.
    #[serde(default)]
    pub queues: u32,
    /// Number of buffers for the station at the far end of a cable; 0: no station.
    pub buffers: u32,
    /// Number of buffers in which the device merges received frames; 0: no merging.
    #[serde(default)]
    pub lro_buffers: u32,
}

/// The wire of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum WireConfig {
    /// A cable in memory.
    Cable(CableConfig),
    /// A TAP, without offloads.
    Tap {
        /// Number of the device.
        device: u32,
    },
    /// A generator of frames.
    Source(FrameSource),
}

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
