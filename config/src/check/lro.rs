//! Checks of large receive offload.

use crate::findings::Findings;
use crate::lro;
use crate::model::Config;
use crate::problem::ConfigPart;

pub(super) fn check(config: &Config, found: &mut Findings) {
    let lro = config.lro;
    found.range(ConfigPart::Lro, "flows", lro.flows, lro::FLOWS);
    found.range(ConfigPart::Lro, "segments", lro.segments, lro::SEGMENTS);
    if !lro.prevents_forwarding() {
        return;
    }
    for (g, guest) in config.guests.iter().enumerate() {
        let forwarding = guest.vifs.iter().position(|vif| vif.settings.forwards);
        if let Some(v) = forwarding {
            let what = format!(
                "`rules` is \"lro\", but {}-{v} ({}) forwards, and its \
                 aggregates cannot be segmented again",
                guest.name,
                ConfigPart::Vif(g, v),
            );
            let remedy = "write rules = \"gro\", or at = \"none\"";
            found.add(ConfigPart::Lro, "rules", what, remedy);
        }
    }
}
