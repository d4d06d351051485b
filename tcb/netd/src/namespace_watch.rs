//! Watches the network namespaces of devices. Reports a namespace whose path no longer exists or
//! names another namespace. A TAP's descriptors keep the namespace alive, so no other event reports
//! this.

use crate::broker::Broker;
use abi::machine::NetnsId;
use netdev::netns::{self, Identity};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval of checks.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Returns whether the found namespace has the identity `was`.
fn is_same(found: Option<NetnsId>, was: Identity) -> bool {
    found.is_some_and(|[device, inode, _]| [device, inode] == was)
}

/// The namespaces of devices, by device number.
#[derive(Debug)]
pub(crate) struct NamespaceWatch {
    of: BTreeMap<u32, (PathBuf, Identity)>,
    last_check: Instant,
}

impl Default for NamespaceWatch {
    fn default() -> Self {
        Self {
            of: BTreeMap::new(),
            last_check: Instant::now(),
        }
    }
}

impl NamespaceWatch {
    /// Records the namespace in which a device was created: its name, and its identity at that
    /// time.
    pub(crate) fn insert(&mut self, dev: u32, name: &str, identity: Identity) {
        self.of.insert(dev, (netns::path(name), identity));
    }

    /// Returns whether the path of a device's namespace still names that namespace. A device
    /// without a path is in netd's namespace, which always exists.
    pub(crate) fn exists(&self, dev: u32, broker: &Broker) -> bool {
        let Some((path, was)) = self.of.get(&dev) else {
            return true;
        };
        let found = broker
            .namespace_ids(&[path])
            .ok()
            .and_then(|mut found| found.pop());
        is_same(found.flatten(), *was)
    }

    /// Stops watching the namespace of a closed device.
    pub(crate) fn remove(&mut self, dev: u32) {
        self.of.remove(&dev);
    }

    /// Returns the time until the next check, or `None` if no namespace is watched.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        let left = CHECK_INTERVAL.saturating_sub(self.last_check.elapsed());
        (!self.of.is_empty()).then_some(left)
    }

    /// Returns the devices whose namespaces were lost since the last check, if a check is due.
    pub(crate) fn find_lost(&mut self, broker: &Broker) -> Vec<u32> {
        if self.next_timeout() != Some(Duration::ZERO) {
            return Vec::new();
        }
        self.last_check = Instant::now();
        self.check(broker)
    }

    fn check(&mut self, broker: &Broker) -> Vec<u32> {
        let paths: Vec<&Path> = self.of.values().map(|(path, _)| path.as_path()).collect();
        let Ok(found) = broker.namespace_ids(&paths) else {
            return Vec::new();
        };
        let all = self.of.iter().zip(found);
        let lost = all.filter(|((_, (_, was)), now)| !is_same(*now, *was));
        let lost: Vec<u32> = lost.map(|((dev, _), _)| *dev).collect();
        lost.iter().for_each(|dev| self.remove(*dev));
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netdev::netns::identity;

    #[test]
    fn a_lost_namespace_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let name = |name: &str| dir.path().join(name).display().to_string();
        let broker = Broker::in_a_thread();
        let mut watch = NamespaceWatch::default();
        assert_eq!(watch.next_timeout(), None);
        for (dev, file) in [(1, "kept"), (2, "removed"), (3, "changed")] {
            std::fs::write(name(file), "").unwrap();
            watch.insert(dev, &name(file), identity(name(file)).unwrap());
        }
        assert!(watch.check(&broker).is_empty());
        std::fs::remove_file(name("removed")).unwrap();
        std::fs::write(name("new"), "").unwrap();
        std::fs::rename(name("new"), name("changed")).unwrap();
        assert_eq!(
            [1, 2, 3, 4].map(|dev| watch.exists(dev, &broker)),
            [true, false, false, true]
        );
        assert_eq!(watch.check(&broker), [2, 3]);
        assert!(watch.check(&broker).is_empty());
        assert!(watch.next_timeout().is_some());
        watch.remove(1);
        assert_eq!(watch.next_timeout(), None);
        assert_eq!(identity(name("removed")), None);
    }
}
