//! Network namespaces that devices were made in. Reports a namespace whose path leads nowhere, or
//! to another namespace: the descriptors of a TAP keep it alive, and nothing else notices.

use crate::broker::Broker;
use abi::machine::NetnsPlace;
use netdev::netns::{self, Identity};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two looks.
pub(crate) const LOOK: Duration = Duration::from_millis(500);

/// Returns whether the namespace that was found is the one of this identity.
fn is_same(found: Option<NetnsPlace>, was: Identity) -> bool {
    found.is_some_and(|[device, inode, _]| [device, inode] == was)
}

/// The namespaces of devices, by the devices' numbers.
#[derive(Debug)]
pub(crate) struct Places {
    of: BTreeMap<u32, (PathBuf, Identity)>,
    looked: Instant,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            of: BTreeMap::new(),
            looked: Instant::now(),
        }
    }
}

impl Places {
    /// A device was made in the namespace of this name, which stood for `identity`.
    pub(crate) fn insert(&mut self, unit: u32, name: &str, identity: Identity) {
        self.of.insert(unit, (netns::path(name), identity));
    }

    /// Returns whether the path of a device's namespace still leads to that namespace. A device
    /// without a path is in netd's own namespace, which stays.
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

    /// A device is no more.
    pub(crate) fn remove(&mut self, unit: u32) {
        self.of.remove(&unit);
    }

    /// How long until the next look; none: there is nothing to look at.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let left = LOOK.saturating_sub(self.looked.elapsed());
        (!self.of.is_empty()).then_some(left)
    }

    /// Returns, if it is time to look, the devices whose namespaces have gone since the last look.
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
    fn a_namespace_that_goes_or_is_another_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let name = |name: &str| dir.path().join(name).display().to_string();
        let broker = Broker::in_a_thread();
        let mut places = Places::default();
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
