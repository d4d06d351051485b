//! Dedicated queues of AF_XDP NICs and of devices in separate domains, each of which receives into
//! the pages of one guest.

use super::devices::DeviceList;
use crate::domain::{DedicatedQueueConfig, DeviceQueueConfig};
use crate::guest::{GuestSection, Vif};
use crate::model::Config;
use crate::nic::NicSection;
use crate::rule::{self, FirewallRule, RuleDirection};
use crate::sizes::{grant_entries, rx_pages, rx_pool};
use abi::firewall;
use abi::machine::{Device, XdpQueue};
use abi::xdp::Ring;
use std::collections::BTreeMap;

/// The dedicated queues of all guests, by guest and vif.
pub(super) type DedicatedQueues = BTreeMap<(usize, usize), DedicatedQueueConfig>;

/// The dedicated queues of devices in separate domains, by guest and vif.
pub(super) type DeviceQueues = BTreeMap<(usize, usize), DeviceQueueConfig>;

/// Records the dedicated queues of the NIC `model` in `queues`. `device` has the NIC's number, the
/// driver's connection to the device, and the first slot of the device's window for guests' grants.
pub(super) fn add_to_device(
    config: &Config,
    model: &NicSection,
    (nic, conn, mut first_slot): (u32, u32, u32),
    queues: &mut DeviceQueues,
) {
    for (place, queue, slots) in slots_of_guests(config, model) {
        let buffers = config.buffers.to_guest;
        let queue = DeviceQueueConfig {
            nic,
            queue,
            conn,
            first_slot,
            buffers,
        };
        queues.insert(place, queue);
        first_slot = first_slot.saturating_add(slots);
    }
}

/// Returns the guests' interfaces that have a dedicated queue of this NIC: the numbers of guest and
/// vif, both of these, and the queue's number.
fn owners<'c>(
    config: &'c Config,
    nic: &'c NicSection,
) -> impl Iterator<Item = ((usize, usize), &'c GuestSection, &'c Vif, u32)> {
    config.vifs().filter_map(move |(place, guest, vif)| {
        let pdev = vif.pdev.as_ref().filter(|pdev| pdev.nic == nic.name)?;
        Some((place, guest, vif, pdev.queue))
    })
}

/// Returns the same interfaces, by guest and vif, each with the numbers of the queue and of its
/// grants.
pub(super) fn slots_of_guests<'c>(
    config: &'c Config,
    nic: &'c NicSection,
) -> impl Iterator<Item = ((usize, usize), u32, u32)> {
    let owners = owners(config, nic);
    owners.map(|(place, guest, _, queue)| (place, queue, grant_entries(config, guest)))
}

/// Adds the devices of NIC number `n`'s dedicated queues, and records the queues in `queues`. Their
/// rings start at slot `window_slots` of the grant window.
pub(super) fn add(
    config: &Config,
    (n, nic): (usize, &NicSection),
    devices: &mut DeviceList,
    window_slots: &mut u32,
    queues: &mut DedicatedQueues,
) {
    for ((g, v), guest, vif, number) in owners(config, nic) {
        let (first_frame, frames) = (rx_pool(config, v), rx_pages(config));
        let chunk_bytes = config.buffers.size.bytes() as u32;
        let chunks = frames.saturating_mul(config.buffers.size.per_page());
        let entries = chunks.checked_next_power_of_two().unwrap_or(1 << 31);
        let rings_slot = *window_slots;
        *window_slots = window_slots.saturating_add(2 * Ring::slots(entries));
        let device = devices.add(Device::XdpQueue(XdpQueue {
            queue: number,
            guest: guest.name.clone(),
            mac: config.vif_mac(g, v).map_or([0; 6], |mac| mac.0),
            first_frame,
            frames,
            chunk_bytes,
            entries,
            rings_slot,
            rules: firewall::RuleLists {
                from_wire: compiled(&nic.settings.rules, RuleDirection::In),
                to_guest: compiled(&vif.settings.rules, RuleDirection::Out),
            },
        }));
        let queue = DedicatedQueueConfig {
            nic: n as u32,
            device,
            rings_slot,
            entries,
            chunk_bytes,
            first_frame,
            frames,
        };
        queues.insert((g, v), queue);
    }
}

/// Returns the rules of a port for one direction, in the monitor's form.
fn compiled(rules: &[FirewallRule], direction: RuleDirection) -> Vec<firewall::RuleRecord> {
    let rules = rule::for_direction(rules, direction);
    rules.map(|(_, rule)| rule.compiled()).collect()
}
