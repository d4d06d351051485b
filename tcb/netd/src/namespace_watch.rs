//! The network namespaces of devices. Reports a namespace whose path is dead or leads to another
//! namespace. A TAP's descriptors keep the namespace alive, so nothing else detects this.

use crate::broker::Broker;
use abi::machine::NetnsId;
use netdev::netns::{self, Identity};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The interval of checks.
pub(crate) const LOOK: Duration = Duration::from_millis(500);

/// Returns whether the found namespace has this identity.
fn is_same(found: Option<NetnsId>, was: Identity) -> bool {
    found.is_some_and(|[device, inode, _]| [device, inode] == was)
}

/// The namespaces of devices, by device number.
#[derive(Debug)]
pub(crate) struct NamespaceWatch {
    of: BTreeMap<u32, (PathBuf, Identity)>,
    looked: Instant,
}

impl Default for NamespaceWatch {
    fn default() -> Self {
        Self {
            of: BTreeMap::new(),
            looked: Instant::now(),
        }
    }
}

impl NamespaceWatch {
    /// Records the namespace that a device was created in: its name, and its identity at that time.
    pub(crate) fn insert(&mut self, unit: u32, name: &str, identity: Identity) {
        self.of.insert(unit, (netns::path(name), identity));
    }

    /// Returns whether the path of a device's namespace still leads to that namespace. A device
    /// without a path is in netd's own namespace, which always exists.
    pub(crate) fn is_there(&self, unit: u32, broker: &Broker) -> bool {
        let Some((path, was)) = self.of.get(&unit) else {
            return true;
        };
        let found = broker
            .places(&[path])
            .ok()
            .and_then(|mut found| found.pop());
        is_same(found.flatten(), *was)
    }

    /// Removes a closed device.
    pub(crate) fn remove(&mut self, unit: u32) {
        self.of.remove(&unit);
    }

    /// Returns the time until the next check; `None` if there is nothing to check.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let left = LOOK.saturating_sub(self.looked.elapsed());
        (!self.of.is_empty()).then_some(left)
    }

    /// If a check is due, returns the devices whose namespaces were lost since the last one.
    pub(crate) fn lost(&mut self, broker: &Broker) -> Vec<u32> {
        if self.wait() != Some(Duration::ZERO) {
            return Vec::new();
        }
        self.looked = Instant::now();
        self.look(broker)
    }

    fn look(&mut self, broker: &Broker) -> Vec<u32> {
        let paths: Vec<&Path> = self.of.values().map(|(path, _)| path.as_path()).collect();
        let Ok(found) = broker.places(&paths) else {
            return Vec::new();
        };
        let all = self.of.iter().zip(found);
        let gone = all.filter(|((_, (_, was)), now)| !is_same(*now, *was));
        let lost: Vec<u32> = gone.map(|((unit, _), _)| *unit).collect();
        lost.iter().for_each(|unit| self.remove(*unit));
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
        let mut places = NamespaceWatch::default();
        assert_eq!(places.wait(), None);
        for (unit, file) in [(1, "stays"), (2, "goes"), (3, "changes")] {
            std::fs::write(name(file), "").unwrap();
            places.insert(unit, &name(file), identity(name(file)).unwrap());
        }
        assert!(places.look(&broker).is_empty());
        std::fs::remove_file(name("goes")).unwrap();
        std::fs::write(name("new"), "").unwrap();
        std::fs::rename(name("new"), name("changes")).unwrap();
        assert_eq!(
            [1, 2, 3, 4].map(|unit| places.is_there(unit, &broker)),
            [true, false, false, true]
        );
        assert_eq!(places.look(&broker), [2, 3]);
        assert!(places.look(&broker).is_empty());
        assert!(places.wait().is_some());
        places.remove(1);
        assert_eq!(places.wait(), None);
        assert_eq!(identity(name("goes")), None);
    }
}
