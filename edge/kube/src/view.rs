//! The objects of some kinds, as the API server last described them.
//!
//! A thread for each kind follows the server and sends changes, which the owner of a view applies.

use crate::compile::Cluster;
use crate::object::Kind;
use crate::server::ApiServer;
use crate::watch::{ClusterChange, follow};
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Changes that may wait for their receiver.
const CHANGES_MAX: usize = 1024;
/// Changes within this time of the first one are applied together.
const BATCH_TIME: Duration = Duration::from_millis(20);

/// The known objects of the followed kinds.
pub(crate) struct ClusterView {
    pub(crate) cluster: Cluster,
    changes: Receiver<ClusterChange>,
    /// Kinds that were not listed yet.
    missing: BTreeSet<Kind>,
}

impl ClusterView {
    /// Starts to follow these kinds.
    pub(crate) fn follow(server: &ApiServer, kinds: &[Kind]) -> Self {
        let (to, changes) = sync_channel(CHANGES_MAX);
        for &kind in kinds {
            let (server, to) = (server.clone(), to.clone());
            thread::spawn(move || follow(&server, kind, &to));
        }
        Self {
            cluster: Cluster::default(),
            changes,
            missing: kinds.iter().copied().collect(),
        }
    }

    /// Returns whether every kind was listed.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// Waits for changes for at most this time, and applies them. Returns whether it has applied
    /// any; adds messages for the user to `notes`.
    pub(crate) fn turn(&mut self, longest: Duration, notes: &mut Vec<String>) -> bool {
        let mut wait = longest;
        let mut end = None;
        let mut has_changed = false;
        while let Ok(change) = self.changes.recv_timeout(wait) {
            has_changed |= self.apply(change, notes);
            let end = *end.get_or_insert_with(|| Instant::now() + BATCH_TIME);
            wait = end.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                break;
            }
        }
        has_changed
    }

    fn apply(&mut self, change: ClusterChange, notes: &mut Vec<String>) -> bool {
        match change {
            ClusterChange::Note(note) => {
                notes.push(note);
                return false;
            }
            ClusterChange::Listed(kind, objects) => {
                self.cluster.clear(kind);
                for (name, object) in objects {
                    self.cluster.put(name, object);
                }
                self.missing.remove(&kind);
            }
            ClusterChange::Put(name, object) => self.cluster.put(name, object),
            ClusterChange::Removed(kind, name) => self.cluster.remove(kind, &name),
        }
        true
    }
}
