//! The toolstack's settings of an interface: nodes below `backend/vif/DOMAIN/NUMBER`.

use config::MacAddress;
use std::net::IpAddr;

/// Settings of an interface.
#[derive(Clone, Debug, PartialEq)]
pub struct InterfaceSettings {
    /// Its MAC, the only one that the guest may use.
    pub mac: [u8; 6],
    /// Its addresses, if the toolstack names any. No other guest may claim them.
    pub addresses: Vec<IpAddr>,
    /// Rate limit of traffic that the guest sends, in megabits per second.
    pub rate_mbps: Option<f64>,
}

/// Reason why an interface cannot be served.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The MAC is missing or not a station's.
    #[error("`mac` is {0:?}, which is not a station's address")]
    Mac(String),
    /// Not an address.
    #[error("`ip` has {0:?}, which is not an address")]
    Address(String),
    /// The rate is not in libxl's format.
    #[error("`rate` is {0:?}, not BYTES,MICROSECONDS")]
    Rate(String),
}

impl InterfaceSettings {
    /// Returns the settings. `node` reads their nodes.
    ///
    /// # Errors
    ///
    /// Returns [`SettingsError`].
    pub fn of(mut node: impl FnMut(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let mac = node("mac").unwrap_or_default();
        let parsed = mac.trim().parse::<MacAddress>().ok().map(|mac| mac.0);
        let parsed = parsed.filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]);
        let parsed = parsed.ok_or(SettingsError::Mac(mac))?;
        let addresses = node("ip").unwrap_or_default();
        let addresses = addresses.split_whitespace().map(|text| {
            let address = text.split('/').next().unwrap_or(text).parse();
            address.map_err(|_| SettingsError::Address(text.to_owned()))
        });
        Ok(Self {
            mac: parsed,
            addresses: addresses.collect::<Result<_, _>>()?,
            rate_mbps: node("rate").map(|text| rate(&text)).transpose()?.flatten(),
        })
    }
}

/// Parses libxl's rate, which consists of a number of bytes and an interval in microseconds.
/// Returns `None` for an unlimited rate, as xen-netback does.
fn rate(text: &str) -> Result<Option<f64>, SettingsError> {
    let bad = || SettingsError::Rate(text.to_owned());
    let (bytes, micros) = text.split_once(',').ok_or_else(bad)?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| bad());
    let (bytes, micros) = (number(bytes)?, number(micros)?);
    // Bits per microsecond are megabits per second.
    Ok((bytes > 0 && micros > 0).then(|| bytes as f64 * 8.0 / micros as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nodes: &[(&str, &str)]) -> Result<InterfaceSettings, SettingsError> {
        InterfaceSettings::of(|name| {
            let found = nodes.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const MAC: (&str, &str) = ("mac", "00:16:3e:00:00:2a");

    #[test]
    fn a_plain_interface_has_a_mac() {
        let plain = of(&[MAC]).unwrap();
        assert_eq!(plain.mac, [0, 0x16, 0x3e, 0, 0, 0x2a]);
        assert_eq!((plain.addresses.len(), plain.rate_mbps), (0, None));
    }

    #[test]
    fn several_addresses_are_parsed() {
        let both = of(&[MAC, ("ip", "10.137.0.9 fd09::9/128")]).unwrap();
        let wanted: [IpAddr; 2] = ["10.137.0.9".parse().unwrap(), "fd09::9".parse().unwrap()];
        assert_eq!(both.addresses, wanted);
        let bad = of(&[MAC, ("ip", "10.137.0")]);
        assert_eq!(bad, Err(SettingsError::Address("10.137.0".into())));
    }

    #[test]
    fn a_rate_is_bytes_in_microseconds() {
        // `rate=10Mb/s` in xl.cfg.
        let limited = of(&[MAC, ("rate", "62500,50000")]).unwrap();
        assert_eq!(limited.rate_mbps, Some(10.0));
        assert_eq!(of(&[MAC, ("rate", "0,0")]).unwrap().rate_mbps, None);
        for bad in ["", "10", "a,b", "1,2,3", "-1,5"] {
            let refused = of(&[MAC, ("rate", bad)]);
            assert_eq!(refused, Err(SettingsError::Rate(bad.into())));
        }
    }

    #[test]
    fn a_mac_must_be_a_stations() {
        for bad in [
            "",
            "00:16:3e",
            "01:00:5e:00:00:01",
            "00:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
        ] {
            assert_eq!(of(&[("mac", bad)]), Err(SettingsError::Mac(bad.into())));
        }
        assert_eq!(of(&[]), Err(SettingsError::Mac(String::new())));
    }
}
