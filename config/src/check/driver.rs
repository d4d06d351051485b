//! Checks of the driver domain, and of the buffers and rings that all guest interfaces share.

use super::findings::Findings;
use crate::domain::{BufferSize, GrantMode, RING_ORDER_MAX};
use crate::keywords;
use crate::model::{Config, DriverSection, SLOTS_PER_PAGE};
use crate::problem::ConfigPart;
use crate::sizes::FLIP_PAGES_MAX;

pub(super) fn check(config: &Config, found: &mut Findings) {
    found.name(ConfigPart::Machine, &config.name);
    if let Some(port) = config.metrics_port {
        found.range(ConfigPart::Machine, "metrics_port", port.into(), 1..=65535);
    }
    driver(&config.driver, found);
    buffers(config, found);
    let slots = config.ring.slots;
    let most = SLOTS_PER_PAGE << RING_ORDER_MAX;
    if !slots.is_power_of_two() || !(SLOTS_PER_PAGE..=most).contains(&slots) {
        let remedy = "write 256, 512, 1024, 2048 or 4096";
        found.add(
            ConfigPart::Ring,
            "slots",
            format!("`slots` is {slots}"),
            remedy,
        );
    }
}

fn driver(driver: &DriverSection, found: &mut Findings) {
    found.cpus(ConfigPart::Driver, &driver.cpus);
    found.spin_us(ConfigPart::Driver, driver.spin_us);
    for (key, value, good) in [
        ("workers", driver.workers, 1..=DriverSection::WORKERS_MAX),
        ("broadcast_pps", driver.broadcast_pps, 1..=10_000_000),
        ("mac_ageing_s", driver.mac_ageing_s, 1..=1_000_000),
        ("flow_tables", driver.flow_tables, 0..=1024),
        ("restart_pause_ms", driver.restart_pause_ms, 0..=60_000),
    ] {
        found.range(ConfigPart::Driver, key, value, good);
    }
    let flows = driver.flows;
    if !flows.is_power_of_two() || !(64..=65_536).contains(&flows) {
        let what = format!("`flows` is {flows}");
        found.add(
            ConfigPart::Driver,
            "flows",
            what,
            "write a power of two from 64 to 65536",
        );
    }
}

fn buffers(config: &Config, found: &mut Findings) {
    let buffers = config.buffers;
    for (key, value, good) in [
        ("to_guest", buffers.to_guest, 32..=4096),
        ("spare", buffers.spare, 0..=4096),
        ("from_guest", buffers.from_guest, 32..=4096),
        ("prefetch", buffers.prefetch, 0..=256),
    ] {
        found.range(ConfigPart::Buffers, key, value, good);
    }
    if let Some(threshold) = buffers.release_threshold {
        release(config, found, threshold);
    }
    if config.driver.grants == GrantMode::Flip {
        flip(config, found);
    }
}

/// Checks that guests can revoke pages, which is possible only if the driver domain releases grants
/// between two frames.
fn release(config: &Config, found: &mut Findings, threshold: u32) {
    let (part, key) = (ConfigPart::Buffers, "release_threshold");
    found.range(part, key, threshold, 0..=4096);
    if config.buffers.spare == 0 {
        let what = "`release_threshold` is set, but `spare` is not";
        let remedy = "leave it out, or set `spare`, the number of buffers to grant and revoke";
        found.add(part, key, what, remedy);
    }
    let grants = config.driver.grants;
    if let GrantMode::Copy | GrantMode::Map | GrantMode::Counted = grants {
        return;
    }
    let grants = keywords::name(&grants);
    let what = format!("`release_threshold` is set, but the driver's `grants` is \"{grants}\"");
    let remedy = "leave it out, or write grants = \"counted\", \"map\" or \"copy\" in [driver]: \
                  otherwise a page stays with the driver domain as long as the connection lasts";
    found.add(part, key, what, remedy);
}

/// Checks the requirements of flipping: the domains exchange whole pages, one for each posted page,
/// and each page is a separate mapping of its domain.
fn flip(config: &Config, found: &mut Findings) {
    let buffers = config.buffers;
    let wrong = "the driver's `grants` is \"flip\"";
    if buffers.size != BufferSize::Full {
        let what = format!("{wrong} and `size` is \"half\"");
        let remedy = "write size = \"full\": each exchanged page holds one frame";
        found.add(ConfigPart::Buffers, "size", what, remedy);
    }
    if buffers.spare > 0 {
        let what = format!("{wrong} and there are `spare` buffers");
        let remedy = "leave them out: pages are exchanged one for one";
        found.add(ConfigPart::Buffers, "spare", what, remedy);
    }
    let vifs: usize = config.guests.iter().map(|guest| guest.vifs.len()).sum();
    let pages = vifs.saturating_mul(buffers.to_guest as usize);
    if pages > FLIP_PAGES_MAX {
        let what = format!("{wrong} and {vifs} interfaces have {pages} buffers `to_guest`");
        let remedy = format!(
            "the limit is {FLIP_PAGES_MAX}: each page is a separate mapping in the driver domain, \
             of which the kernel allows a process some 65 000"
        );
        found.add(ConfigPart::Buffers, "to_guest", what, remedy);
    }
}
