//! How domains wait, where a file does not say: by who shares CPUs with whom.

use crate::model::{Config, Driver, Guest};

/// A domain's spin budget: as given, or by whether driver and guests share CPUs.
pub(super) fn spin_us(config: &Config, given: Option<u32>) -> u32 {
    let usual = match config.is_driver_apart() {
        true => Driver::SPIN_APART_US,
        false => 0,
    };
    given.unwrap_or(usual)
}

/// Whether more guests may use the CPUs of one than there are.
pub(super) fn is_crowded(config: &Config, guest: &Guest) -> bool {
    let shares = |other: &&Guest| other.cpus.iter().any(|cpu| guest.cpus.contains(cpu));
    config.guests.iter().filter(shares).count() > guest.cpus.len()
}

/// How long guests are left asleep while a NIC has more for them: by whether driver and guests
/// share CPUs.
pub(super) fn notify_us(config: &Config) -> u32 {
    match config.is_driver_apart() {
        true => 0,
        false => Driver::NOTIFY_SHARED_US,
    }
}
