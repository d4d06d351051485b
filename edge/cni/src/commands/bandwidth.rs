//! What may go to a container and come from it: what the network's configuration has, and what
//! the runtime asks for, as keys of an interface.

use crate::failure::{Code, Failure};
use abi::machine::Setting;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Bits of a burst that somebody has named. Runtimes pass on 2³¹ - 1 or 2³² - 1 where nobody has:
/// that many bytes would let through most of what a container ever gets.
const BURST_MAX: u64 = i32::MAX as u64 - 1;
/// Bits a second that a machine takes for a rate.
const RATE_MAX: u64 = 1_000_000_000_000_000;

/// As the reference plugin `bandwidth` has it, with all keys in lower case: bits a second, and
/// bits. A rate of 0 is none; a burst without a rate limits nothing.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Bandwidth {
    ingressrate: Option<u64>,
    ingressburst: Option<u64>,
    egressrate: Option<u64>,
    egressburst: Option<u64>,
}

impl Bandwidth {
    /// Puts it among the keys of an interface. Where there is a rate already, the lower one holds,
    /// with its burst.
    pub(super) fn put(&self, vif: &mut BTreeMap<String, Setting>) -> Result<(), Failure> {
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
                let why = format!("write bits a second, at most {RATE_MAX}");
                return Err(Failure::new(Code::Config, msg).because(why));
            }
            let mbps = rate as f64 / 1e6;
            let is_lower = |there: &Setting| match there {
                Setting::Number(there) => mbps < *there as f64,
                Setting::Real(there) => mbps < *there,
                // It is no rate: the machine says so.
                _ => false,
            };
            if !vif.get(rate_key).is_none_or(is_lower) {
                continue;
            }
            vif.insert(rate_key.to_owned(), Setting::Real(mbps));
            vif.remove(burst_key);
            if let Some(bits) = burst.filter(|bits| (1..=BURST_MAX).contains(bits)) {
                let bytes = bits.div_ceil(8) as i64;
                vif.insert(burst_key.to_owned(), Setting::Number(bytes));
            }
        }
        Ok(())
    }
}
