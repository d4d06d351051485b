//! Changes the firewall rules of an attached guest while it runs.

use super::reload::{current_guest, is_in_place};
use super::sections::keys_of;
use super::{LiveConfig, LiveSpec, state};
use crate::parse::read_guest;
use abi::machine::ConfigValue;

/// The keys of an interface that this request replaces.
const KEYS: [&str; 3] = ["firewall", "inbound", "rule"];

impl LiveConfig {
    /// Returns the description of an attached guest with new rules. `request` has its `name` and a
    /// list `vif` with a section for each of its first interfaces, with the keys `firewall`,
    /// `inbound` and `rule`. A missing key has its default. Other interfaces keep their rules.
    ///
    /// # Errors
    ///
    /// Returns an error if the guest does not exist or belongs to the files, or `request` has
    /// mistakes.
    pub fn with_rules(
        &self,
        live: &LiveSpec,
        request: &ConfigValue,
    ) -> Result<ConfigValue, String> {
        let name = state::name_of(request);
        let name = name.ok_or("the guest has no `name`: write which guest gets the rules")?;
        let missing = || format!("no guest is named {name}");
        let present = self.config.guest(name).ok_or_else(missing)?;
        if !live.is_attached_by_hand(name) {
            return Err(format!(
                "guest {name} belongs to the machine's files: change its rules there, then run \
                 `grantway reload`"
            ));
        }
        let mut guest = current_guest(live, self, name).ok_or_else(missing)?;
        let (ConfigValue::Section(of_guest), ConfigValue::Section(keys)) = (&mut guest, request)
        else {
            return Err("the guest is not a section: write its `name` and its list `vif`".into());
        };
        if let Some(key) = keys
            .keys()
            .find(|key| !["name", "vif"].contains(&key.as_str()))
        {
            return Err(format!(
                "guest {name}: `{key}` cannot change: write only `name` and `vif`"
            ));
        }
        let (Some(ConfigValue::List(vifs)), Some(ConfigValue::List(request))) =
            (of_guest.get_mut("vif"), keys.get("vif"))
        else {
            return Err(format!(
                "guest {name}: `vif` is not a list: write a section for each interface"
            ));
        };
        if request.len() > vifs.len() {
            return Err(format!(
                "guest {name}: `vif` has {} sections, and the guest has {} interfaces",
                request.len(),
                vifs.len()
            ));
        }
        for (n, (vif, request)) in (1..).zip(vifs.iter_mut().zip(request)) {
            let is_other = |key: &&String| !KEYS.contains(&key.as_str());
            if let Some(key) = keys_of(request, request).into_iter().find(is_other) {
                return Err(format!(
                    "guest {name}: interface {n}: `{key}` cannot change: write only `firewall`, \
                     `inbound` and `rule`"
                ));
            }
            let (ConfigValue::Section(vif), ConfigValue::Section(request)) = (vif, request) else {
                return Err(format!("guest {name}: interface {n} is not a section"));
            };
            vif.retain(|key, _| !KEYS.contains(&key.as_str()));
            vif.extend(request.clone());
        }
        let changed = read_guest(self.config.guests.len(), &guest);
        let changed = changed.map_err(|wrong| self.by_name(&guest, &wrong.to_string()))?;
        match is_in_place(&changed, present) {
            true => Ok(guest),
            false => Err(format!(
                "guest {name}: the effect of `firewall` on dedicated queues (\"shared\") cannot \
                 change: detach the guest and attach it again"
            )),
        }
    }
}

#[cfg(test)]
mod tests;
