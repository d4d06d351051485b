//! The announcement of a guest's addresses after the guest connects.

use config::domain::VifConfig;
use std::net::IpAddr;

/// Addresses that the driver still has to announce for a guest.
///
/// After a start, guests connect one by one. The driver announces an address as soon as it carries
/// traffic, and once more when all guests are connected, because a guest that connected later has
/// missed the first announcement.
#[derive(Debug)]
pub struct Announcement {
    addresses: Vec<IpAddr>,
    was_sent: bool,
}

impl Announcement {
    /// Creates the announcement of the guest that `vif` describes.
    #[must_use]
    pub fn new(vif: &VifConfig) -> Self {
        Self {
            addresses: match vif.announces {
                true => vif.guard.addresses.clone(),
                false => Vec::new(),
            },
            was_sent: false,
        }
    }

    /// Returns the addresses to announce now, after which the caller must announce them.
    /// `all_connected` means that no guest can miss this announcement, so that it is the last.
    pub fn take_due(&mut self, all_connected: bool) -> Vec<IpAddr> {
        match all_connected {
            true => std::mem::take(&mut self.addresses),
            false if std::mem::replace(&mut self.was_sent, true) => Vec::new(),
            false => self.addresses.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Announcement;

    fn announcement() -> Announcement {
        Announcement {
            addresses: vec!["10.0.0.2".parse().unwrap()],
            was_sent: false,
        }
    }

    #[test]
    fn late_guests_get_a_second_announcement() {
        let mut announcement = announcement();
        let addresses = announcement.addresses.clone();
        assert_eq!(announcement.take_due(false), addresses);
        // Further guests connect, but not all of them.
        assert!(announcement.take_due(false).is_empty());
        assert_eq!(announcement.take_due(true), addresses);
        assert!(announcement.take_due(true).is_empty());
    }

    #[test]
    fn one_announcement_reaches_connected_guests() {
        let mut announcement = announcement();
        assert_eq!(announcement.take_due(true).len(), 1);
        assert!(announcement.take_due(true).is_empty());
        assert!(announcement.take_due(false).is_empty());
    }
}
