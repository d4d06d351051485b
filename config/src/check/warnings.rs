//! Warnings of a valid configuration.

use crate::model::Config;
use crate::problem::{ConfigPart, Finding};

impl Config {
    /// Warns of interfaces whose longest packets another port of the bridge cannot carry.
    pub(crate) fn warnings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for ((g, v), _, vif) in self.vifs() {
            let Some((mtu, whose)) = self.smaller_mtu(g, vif.mtu) else {
                continue;
            };
            found.push(Finding {
                part: ConfigPart::Vif(g, v),
                key: "mtu",
                what: format!("`mtu` is {}, but that of {whose} is {mtu}", vif.mtu),
                remedy: format!(
                    "packets above {mtu} bytes are dropped there (`too_long`), and senders have \
                     to learn that MTU; write the same `mtu` for both"
                ),
            });
        }
        found
    }

    /// Returns the smallest MTU below `mtu`, and its owner: a NIC, or otherwise a guest other than
    /// number `g`.
    fn smaller_mtu(&self, g: usize, mtu: u32) -> Option<(u32, String)> {
        let nics = self.nics.iter();
        let nics = nics.map(|nic| (nic.settings.mtu, format!("NIC {}", nic.name)));
        let vifs = self.vifs().filter(|((n, _), ..)| *n != g);
        let vifs = vifs.map(|(_, guest, vif)| (vif.mtu, format!("guest {}", guest.name)));
        let smaller = |(other, _): &(u32, String)| *other < mtu;
        let nic = nics.filter(smaller).min_by_key(|(mtu, _)| *mtu);
        nic.or_else(|| vifs.filter(smaller).min_by_key(|(mtu, _)| *mtu))
    }
}
