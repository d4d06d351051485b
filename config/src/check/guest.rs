//! Checks the guests and their names.

use crate::findings::Findings;
use crate::guest;
use crate::model::Config;
use crate::problem::ConfigPart;
use crate::sizes::{device_name, worker_name};
use std::collections::BTreeMap;

pub(super) fn check(config: &Config, found: &mut Findings) {
    let mut names = BTreeMap::new();
    let devices = config.nics.iter().filter(|nic| nic.has_device_domain());
    let devices = devices.map(|nic| device_name(&nic.name));
    let workers = (0..config.driver.workers.max(1)).map(worker_name);
    let reserved: Vec<_> = workers.chain(devices).collect();
    let most = usize::from(u16::MAX);
    if config.guests.len() > most {
        found.add(
            ConfigPart::Guest(most),
            "",
            "too many guests",
            format!("the limit is {most}"),
        );
        return;
    }
    for (g, guest) in config.guests.iter().enumerate() {
        let part = ConfigPart::Guest(g);
        found.name(part, &guest.name);
        if reserved.contains(&guest.name) {
            let owner = match guest.name.strip_prefix("device-") {
                Some(nic) => format!("the device of NIC {nic}"),
                None => "the driver domain".to_owned(),
            };
            let what = format!("the name \"{}\" is reserved for {owner}", guest.name);
            found.add(part, "name", what, "choose another one");
        } else {
            found.unique(part, &mut names, &guest.name, g, "[[guest]]");
        }
        guest::check(found, g, guest, &config.driver);
    }
}
