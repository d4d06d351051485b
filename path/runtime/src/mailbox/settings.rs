//! Settings that the request `set` changes while traffic runs.

use config::lro::{LroConfig, SWITCHES};

/// Settings of a domain that a user can change while traffic runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// Large receive offload: `lro.<key>`.
    pub lro: LroConfig,
}

impl RuntimeSettings {
    /// Changes one setting. `forwarding` is the name of an interface whose packets are forwarded,
    /// if any.
    ///
    /// # Errors
    /// Returns an error if the setting does not exist or the value is invalid; nothing has then
    /// changed.
    pub fn set(&mut self, key: &str, value: &str, forwarding: Option<&str>) -> Result<(), String> {
        let known = key
            .strip_prefix("lro.")
            .filter(|key| SWITCHES.contains(key));
        let Some(name) = known else {
            let known = SWITCHES.map(|key| format!("lro.{key}")).join(", ");
            return Err(format!("unknown setting \"{key}\"; known: {known}"));
        };
        let mut lro = self.lro;
        lro.set(name, value)
            .map_err(|why| format!("{key} is \"{value}\"; {why}"))?;
        if let Some(interface) = forwarding
            && lro.prevents_forwarding()
        {
            return Err(format!(
                "{key} is \"{value}\", but {interface} forwards packets, and segmentation \
                 cannot undo merges by the rules \"lro\"; set lro.rules to gro first"
            ));
        }
        self.lro = lro;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_settings_are_rejected_with_a_list() {
        let mut switches = switches();
        let unknown = switches.set("polls", "8", None).unwrap_err();
        assert!(unknown.contains("known: lro.at, lro.rules"), "{unknown}");
        assert_eq!(switches, self::switches());
    }

    fn switches() -> RuntimeSettings {
        let lro = LroConfig::default();
        RuntimeSettings { lro }
    }

    #[test]
    fn lro_settings_use_the_words_of_the_file() {
        let mut switches = switches();
        for (key, value) in [("at", "both"), ("flush", "t50"), ("rules", "lro")] {
            let key = format!("lro.{key}");
            switches.set(&key, value, None).unwrap();
        }
        assert_eq!(switches.lro.at, config::lro::Placement::Both);
        assert_eq!(switches.lro.flush, config::lro::FlushConfig::After(50));
        assert_eq!(switches.lro.rules, config::lro::RulesKey::Lro);
        let before = switches.clone();
        for (key, says) in [
            ("lro.flush", "lro.flush is \"now\"; write \"poll\", \"da2\""),
            ("lro.flows", "unknown setting \"lro.flows\""),
            ("flush", "unknown setting \"flush\""),
        ] {
            let why = switches.set(key, "now", None).unwrap_err();
            assert!(why.starts_with(says), "{why}");
        }
        assert_eq!(switches, before);
    }

    #[test]
    fn forwarders_reject_irreversible_merge_rules() {
        let mut switches = switches();
        let mut set = |key, value| switches.set(key, value, Some("router-0"));
        set("lro.at", "physical").unwrap();
        let why = set("lro.rules", "lro").unwrap_err();
        assert!(why.contains("router-0 forwards packets"), "{why}");
        set("lro.at", "none").unwrap();
        set("lro.rules", "lro").unwrap();
        assert!(set("lro.at", "both").is_err());
        assert_eq!(switches.lro.at, config::lro::Placement::None);
    }
}
