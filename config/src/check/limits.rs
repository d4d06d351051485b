//! Checks that a valid configuration stays within the machine's limits.

use crate::findings::Findings;
use crate::machine::build;
use crate::model::Config;
use crate::problem::ConfigPart;
use crate::sizes::GRANTS_MAX;
use abi::layout::{FRAMES_MAX, WINDOW_SLOTS_MAX, fd, info};
use abi::machine::DomainSpec;

pub(super) fn check(config: &Config, found: &mut Findings) {
    let vifs = config.vifs().count();
    let most = fd::CONNECTIONS_MAX as usize;
    if vifs > most {
        let last = config.guests.len().saturating_sub(1);
        let what = format!("too many guests: {vifs} interfaces in all");
        found.add(
            ConfigPart::Guest(last),
            "",
            what,
            format!("the limit is {most}"),
        );
        return;
    }
    let machine = build(config);
    let workers = config.driver.workers.max(1) as usize;
    for (n, domain) in machine.domains.iter().enumerate() {
        let part = n
            .checked_sub(workers)
            .filter(|g| *g < config.guests.len())
            .map_or(ConfigPart::Machine, ConfigPart::Guest);
        self::domain(domain, part, found);
    }
}

/// Checks the limits of one domain.
pub(super) fn domain(domain: &DomainSpec, part: ConfigPart, found: &mut Findings) {
    for (what, has, most) in [
        ("page frames", domain.frames, FRAMES_MAX),
        ("grant references", domain.grant_entries, GRANTS_MAX),
        (
            "slots of the grant window",
            domain.window_slots,
            WINDOW_SLOTS_MAX,
        ),
        ("devices", domain.devices.len() as u32, fd::DEVICES_MAX),
        (
            "bytes of configuration",
            domain.config.len() as u32,
            info::CONFIG_MAX as u32,
        ),
    ] {
        if has > most {
            let what = format!("domain {} needs {has} {what}", domain.name);
            let remedy =
                format!("the limit is {most}: use fewer guests, interfaces, queues or buffers");
            found.add(part, "", what, remedy);
        }
    }
}
