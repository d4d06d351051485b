//! The state of the virtual machine's link.

/// Time without a driver domain after which the virtual machine's link is down. A restarted driver
/// domain connects much sooner. Without this delay, the guest's network manager would reconfigure
/// the interface at each restart.
pub const DOWN_AFTER_NS: u64 = 1_000_000_000;

/// The link, as the virtual machine sees it.
#[derive(Debug)]
pub(crate) struct VmLink {
    is_up: bool,
    /// Time at which the interface lost its driver domain.
    lost_ns: Option<u64>,
}

impl Default for VmLink {
    fn default() -> Self {
        Self {
            is_up: true,
            lost_ns: None,
        }
    }
}

impl VmLink {
    /// Returns whether the link is up.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    /// Records whether the interface has a driver domain. Returns whether the link's state changes.
    pub(crate) fn set(&mut self, is_connected: bool, now_ns: u64) -> bool {
        let is_up = match (is_connected, self.lost_ns) {
            (true, _) => {
                self.lost_ns = None;
                true
            }
            (false, None) => {
                self.lost_ns = Some(now_ns);
                self.is_up
            }
            (false, Some(lost_ns)) => self.is_up && now_ns.saturating_sub(lost_ns) < DOWN_AFTER_NS,
        };
        std::mem::replace(&mut self.is_up, is_up) != is_up
    }

    /// Returns the time at which the link is set down unless a driver domain connects.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let lost_ns = self.lost_ns.filter(|_| self.is_up)?;
        Some(lost_ns.saturating_add(DOWN_AFTER_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_outage_leaves_the_link_up() {
        let mut link = VmLink::default();
        assert!(!link.set(false, 5));
        assert_eq!(link.due_ns(), Some(5 + DOWN_AFTER_NS));
        assert!(!link.set(false, 4 + DOWN_AFTER_NS));
        assert!(!link.set(true, 4 + DOWN_AFTER_NS));
        assert_eq!(link.due_ns(), None);
        assert!(!link.set(false, 2 * DOWN_AFTER_NS), "a new outage");
        assert!(!link.set(false, 2 * DOWN_AFTER_NS + 5));
    }

    #[test]
    fn a_long_outage_takes_the_link_down_until_it_ends() {
        let mut link = VmLink::default();
        link.set(false, 5);
        assert!(link.set(false, 5 + DOWN_AFTER_NS));
        assert!(!link.is_up());
        assert_eq!(link.due_ns(), None, "it is down already");
        assert!(!link.set(false, 9 * DOWN_AFTER_NS));
        assert!(link.set(true, 9 * DOWN_AFTER_NS));
        assert!(link.is_up());
    }
}
