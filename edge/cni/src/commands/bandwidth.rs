//! Rates and bursts of a container: converts those of the network's configuration and of the
//! runtime to keys of an interface.

use crate::error::{CniError, ErrorCode};
use abi::machine::ConfigValue;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Largest burst that counts as set, in bits. Runtimes pass 2³¹ - 1 or 2³² - 1 if none was set; a
/// burst that large would pass most of a container's traffic.
const BURST_MAX: u64 = i32::MAX as u64 - 1;
/// Highest rate that a machine accepts, in bits per second.
const RATE_MAX: u64 = 1_000_000_000_000_000;

/// The keys of the reference plugin `bandwidth`, in lower case. Rates are in bits per second,
/// bursts in bits. A rate of 0 means no limit; a burst without a rate has no effect.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Bandwidth {
    ingressrate: Option<u64>,
    ingressburst: Option<u64>,
    egressrate: Option<u64>,
    egressburst: Option<u64>,
}

impl Bandwidth {
    /// Adds the limits to the keys of an interface. If the keys already have a rate, the lower of
    /// the two rates applies, with its burst.
    pub(super) fn put(&self, vif: &mut BTreeMap<String, ConfigValue>) -> Result<(), CniError> {
        let to_guest = ["rate_to_guest_mbps", "burst_to_guest_bytes"];
        let from_guest = ["rate_mbps", "burst_bytes"];
        for (way, rate, burst, [rate_key, burst_key]) in [
            ("ingress", self.ingressrate, self.ingressburst, to_guest),
            ("egress", self.egressrate, self.egressburst, from_guest),
        ] {
            let Some(rate) = rate.filter(|rate| *rate > 0) else {
                continue;
            };
            if rate > RATE_MAX {
                let msg = format!("`bandwidth.{way}Rate` is {rate}");
                let why = format!("set bits per second, at most {RATE_MAX}");
                return Err(CniError::new(ErrorCode::Config, msg).with_details(why));
            }
            let mbps = rate as f64 / 1e6;
            let is_lower = |there: &ConfigValue| match there {
                ConfigValue::Number(there) => mbps < *there as f64,
                ConfigValue::Real(there) => mbps < *there,
                // The value is not a rate; the machine rejects it.
                _ => false,
            };
            if !vif.get(rate_key).is_none_or(is_lower) {
                continue;
            }
            vif.insert(rate_key.to_owned(), ConfigValue::Real(mbps));
            vif.remove(burst_key);
            if let Some(bits) = burst.filter(|bits| (1..=BURST_MAX).contains(bits)) {
                let bytes = bits.div_ceil(8) as i64;
                vif.insert(burst_key.to_owned(), ConfigValue::Number(bytes));
            }
        }
        Ok(())
    }
}
