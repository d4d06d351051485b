//! Default polling settings of domains, which depend on whether domains share CPUs.

use crate::driver::DriverSection;
use crate::guest::GuestSection;
use crate::model::Config;

/// Polling of a domain before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PollingConfig {
    pub(super) us: u32,
    /// Whether it yields the CPU after each poll that found nothing.
    pub(super) yields: bool,
    /// Whether the polling time adapts to the lengths of the domain's pauses.
    pub(super) adapts: bool,
}

impl PollingConfig {
    /// Returns the driver domain's settings.
    pub(super) fn of_driver(config: &Config) -> Self {
        let driver = &config.driver;
        Self::of(config, driver.spin_us, &driver.cpus)
    }

    /// Returns a guest's settings.
    pub(super) fn of_guest(config: &Config, guest: &GuestSection) -> Self {
        let spin = Self::of(config, guest.spin_us, &guest.cpus);
        Self {
            yields: spin.yields || is_crowded(config, guest),
            ..spin
        }
    }

    /// Returns the configured setting, or a default that depends on whether driver and guests share
    /// CPUs. A domain that may run on any CPU adapts its polling time.
    fn of(config: &Config, given: Option<u32>, cpus: &[usize]) -> Self {
        let (us, adapts) = match given {
            Some(us) => (us, false),
            None if config.has_separate_driver_cpus() => {
                (DriverSection::SPIN_SEPARATE_CPUS_US, false)
            }
            None if cpus.is_empty() => (DriverSection::SPIN_MAX_US, true),
            None => (0, false),
        };
        Self {
            us,
            yields: adapts,
            adapts,
        }
    }
}

/// Returns whether the guests that may use this guest's CPUs outnumber those CPUs.
fn is_crowded(config: &Config, guest: &GuestSection) -> bool {
    let shares = |other: &&GuestSection| other.cpus.iter().any(|cpu| guest.cpus.contains(cpu));
    config.guests.iter().filter(shares).count() > guest.cpus.len()
}

/// Returns for how many microseconds guests stay asleep while a NIC has more frames for them. It
/// depends on whether driver and guests share CPUs.
pub(super) fn notify_us(config: &Config) -> u32 {
    match config.has_separate_driver_cpus() {
        true => 0,
        false => DriverSection::NOTIFY_SHARED_US,
    }
}
