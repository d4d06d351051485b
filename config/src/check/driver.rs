//! Checks of the driver domain, and of the buffers and rings that all guest interfaces share.

use crate::domain::{BufferSize, GrantMode};
use crate::findings::Findings;
use crate::keywords;
use crate::model::Config;
use crate::problem::ConfigPart;
use crate::sizes::FLIP_PAGES_MAX;

pub(super) fn check(config: &Config, found: &mut Findings) {
    found.name(ConfigPart::Machine, &config.name);
    if let Some(port) = config.metrics_port {
        found.range(ConfigPart::Machine, "metrics_port", port.into(), 1..=65535);
    }
    config.driver.check(found);
    buffers(config, found);
    config.ring.check(found);
}

fn buffers(config: &Config, found: &mut Findings) {
    let buffers = config.buffers;
    buffers.check(found);
    if let Some(threshold) = buffers.release_threshold {
        release(config, found, threshold);
    }
    if config.driver.grants.exchanges_pages() {
        flip(config, found);
    }
    if buffers.headroom > 0 && buffers.size != BufferSize::Full {
        let what = "`headroom` is set, but `size` is not \"full\"";
        let remedy = "leave it out, or write size = \"full\": half a page has no room for it";
        found.add(ConfigPart::Buffers, "headroom", what, remedy);
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
    let grants = keywords::name(&config.driver.grants);
    let wrong = format!("the driver's `grants` is \"{grants}\"");
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
    if buffers.headroom > 0 {
        let what = format!("{wrong} and `headroom` is set");
        let remedy = "leave it out: a whole page is exchanged for each frame";
        found.add(ConfigPart::Buffers, "headroom", what, remedy);
    }
    let vifs = config.vifs().count();
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
