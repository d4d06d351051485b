//! How domains wait, where a file does not say: by who shares CPUs with whom.

use crate::model::{Config, Driver, Guest};

/// How a domain looks for work before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spin {
    pub(super) us: u32,
    /// Whether it offers the CPU to others after each look that found nothing.
    pub(super) yields: bool,
    /// Whether how long it looks follows from its pauses.
    pub(super) adapts: bool,
}

impl Spin {
    /// The driver domain's.
    pub(super) fn of_driver(config: &Config) -> Self {
        let driver = &config.driver;
        Self::of(config, driver.spin_us, &driver.cpus)
    }

    /// A guest's.
    pub(super) fn of_guest(config: &Config, guest: &Guest) -> Self {
        let spin = Self::of(config, guest.spin_us, &guest.cpus);
        Self {
            yields: spin.yields || is_crowded(config, guest),
            ..spin
        }
    }

    /// As given, or by whether driver and guests share CPUs. A domain that may run on any CPU finds
    /// out by itself.
    fn of(config: &Config, given: Option<u32>, cpus: &[usize]) -> Self {
        let (us, adapts) = match given {
            Some(us) => (us, false),
            None if config.is_driver_apart() => (Driver::SPIN_APART_US, false),
            None if cpus.is_empty() => (Driver::SPIN_MOST_US, true),
            None => (0, false),
        };
        Self {
            us,
            yields: adapts,
            adapts,
        }
    }
}

/// Whether more guests may use the CPUs of one than there are.
fn is_crowded(config: &Config, guest: &Guest) -> bool {
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
