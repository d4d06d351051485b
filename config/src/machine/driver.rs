//! A worker of the driver domain.

use super::encode::json;
use super::nic::Nics;
use super::polling::{PollingConfig, notify_us};
use crate::domain::{DriverConfig, FrameLimit, PortSettings, VifConfig};
use crate::driver::DriverSection;
use crate::guest::Vif;
use crate::model::Config;
use crate::sizes::{
    COLLATERAL_PAGES, QUEUE_PAGES, RESERVED_GRANTS, SPARE_FRAMES, device_pages, flip_pages,
    flow_pages, grant_entries, ring_pages, rx_pages, staging_pages, sum, table_slots, worker_name,
};
use abi::machine::{DomainSpec, Program};

/// Returns the domain of worker number `worker`.
pub(super) fn domain(config: &Config, worker: u32) -> DomainSpec {
    let driver = &config.driver;
    let mut nics = Nics::build(config, worker);
    let vifs = vifs(config, &mut nics);
    let staged = staging_pages(config).saturating_mul(vifs.len() as u32);
    let spin = PollingConfig::of_driver(config);
    let granted = nics.nics.iter().map(device_pages).max().unwrap_or(0);
    let config_text = DriverConfig {
        nics: nics.nics,
        vifs,
        driver: DriverSection {
            broadcast_pps: driver.broadcast_pps.div_ceil(driver.workers.max(1)),
            spin_us: Some(spin.us),
            ..driver.clone()
        },
        ring_order: config.ring_order(),
        ring_format: config.ring.format,
        reports_to_all: driver.workers > 1,
        yields: spin.yields,
        adapts: spin.adapts,
        notify_us: notify_us(config),
        lro: config.lro,
    };
    DomainSpec {
        name: worker_name(worker),
        program: Program::Driver,
        frames: sum([
            SPARE_FRAMES,
            nics.frames,
            staged,
            QUEUE_PAGES,
            flow_pages(config),
        ]),
        grant_entries: RESERVED_GRANTS.max(granted),
        window_slots: nics.window_slots,
        collateral: collateral(config),
        foreign_pages: 0,
        weight: 1,
        restart_pause_ms: driver.restart.then_some(driver.restart_pause_ms),
        cpus: driver.worker_cpus(worker),
        devices: nics.devices.0,
        config: json(&config_text),
    }
}

/// Returns the driver's configuration of all guests' interfaces. Their grants and tables follow the
/// slots of the NICs in its window.
fn vifs(config: &Config, nics: &mut Nics) -> Vec<VifConfig> {
    let mut vifs = Vec::new();
    for (place, guest, vif) in config.vifs() {
        let slots = grant_entries(config, guest);
        let first_slot = nics.window_slots;
        let tables_slot = first_slot.saturating_add(slots);
        nics.window_slots = tables_slot.saturating_add(table_slots(config, slots));
        vifs.push(VifConfig {
            conn: nics.device_domains + vifs.len() as u32,
            first_slot,
            tables_slot,
            queue: nics.dedicated.get(&place).copied(),
            device_queue: nics.device_queues.get(&place).copied(),
            ..vif_config(config, place, vif)
        });
    }
    vifs
}

/// Returns the driver's configuration of a guest's interface, except its connection, slots and
/// queue, which depend on the other interfaces.
pub(super) fn vif_config(config: &Config, (g, v): (usize, usize), vif: &Vif) -> VifConfig {
    let guest = config.guests.get(g);
    let name = guest.map_or("", |guest| guest.name.as_str());
    VifConfig {
        conn: 0,
        name: VifConfig::name_of(name, v),
        mac: config.vif_mac(g, v).map_or([0; 6], |mac| mac.0),
        guard: vif.guard(),
        settings: PortSettings {
            rules: vif.all_rules(),
            ..vif.settings.of_worker(&config.driver)
        },
        announces: false,
        to_guest: vif.limit_to_guest().map(|limit| FrameLimit {
            rate_mbps: config.driver.share_of(limit.rate_mbps),
            ..limit
        }),
        first_slot: 0,
        slots: guest.map_or(0, |guest| grant_entries(config, guest)),
        tables_slot: 0,
        flip_pages: flip_pages(config),
        staging_pages: staging_pages(config),
        queue: None,
        device_queue: None,
    }
}

/// Returns the number of pages that guests may revoke by force: the rings of each interface, and
/// the pages that are in use. A device uses most of its buffers all the time.
fn collateral(config: &Config) -> u32 {
    if !config.driver.grants.has_tables() {
        return 0;
    }
    let shares = config.vifs().map(|(.., vif)| {
        let posted = vif.pdev.as_ref().map_or(0, |_| rx_pages(config));
        sum([ring_pages(config), COLLATERAL_PAGES, posted])
    });
    sum(shares)
}
