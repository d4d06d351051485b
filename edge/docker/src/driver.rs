//! The driver: networks and endpoints, in memory and on disk.

use crate::api::{CreateNetwork, DeleteNetwork, Id};
use crate::network::DockerNetwork;
use crate::record::EndpointRecord;
use crate::store::RecordStore;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The folders of the driver's records.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Networks, which survive a reboot.
    pub state: PathBuf,
    /// Endpoints and pending cleanups, which a reboot removes.
    pub run: PathBuf,
}

/// An endpoint. Its lock is held while its guest is attached or detached.
pub(crate) type SharedEndpoint = Arc<Mutex<EndpointRecord>>;

/// The driver.
#[derive(Debug)]
pub struct RemoteDriver {
    networks: Mutex<BTreeMap<Id, DockerNetwork>>,
    stored_networks: RecordStore,
    slots: Mutex<BTreeMap<Id, SharedEndpoint>>,
    pub(crate) stored_endpoints: RecordStore,
    /// The folder of guests to be detached once their machine answers.
    pub(crate) pending: String,
}

/// A thread that panicked cannot have left a record half written: each is replaced as a whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RemoteDriver {
    /// Opens the driver with the records of an earlier one.
    ///
    /// # Errors
    ///
    /// Returns an error if a folder cannot be created.
    pub fn open(folders: &Folders) -> io::Result<Self> {
        let stored_networks = RecordStore::open(&folders.state.join("networks"))?;
        let stored_endpoints = RecordStore::open(&folders.run.join("endpoints"))?;
        let networks = stored_networks.all().into_iter().collect();
        let endpoints = stored_endpoints.all().into_iter();
        let slots = endpoints.map(|(id, endpoint)| (id, Arc::new(Mutex::new(endpoint))));
        Ok(Self {
            networks: Mutex::new(networks),
            stored_networks,
            slots: Mutex::new(slots.collect()),
            stored_endpoints,
            pending: folders.run.join("pending").display().to_string(),
        })
    }

    /// Records a network.
    pub(crate) fn create_network(&self, call: &CreateNetwork) -> Result<(), String> {
        let network = DockerNetwork::of(call)?;
        let stored = self.stored_networks.put(&call.network, &network);
        stored.map_err(|error| error.to_string())?;
        locked(&self.networks).insert(call.network.clone(), network);
        Ok(())
    }

    /// Removes a network and its remaining endpoints. Succeeds if it is unknown.
    pub(crate) fn delete_network(&self, call: &DeleteNetwork) -> Result<(), String> {
        let removed = self.stored_networks.remove(&call.network);
        removed.map_err(|error| error.to_string())?;
        locked(&self.networks).remove(&call.network);
        for (id, slot) in self.all() {
            if locked(&slot).network_id == call.network {
                self.forget(&id, &slot);
            }
        }
        Ok(())
    }

    pub(crate) fn network(&self, id: &Id) -> Option<DockerNetwork> {
        locked(&self.networks).get(id).cloned()
    }

    pub(crate) fn slot(&self, id: &Id) -> Option<SharedEndpoint> {
        locked(&self.slots).get(id).cloned()
    }

    /// Returns all endpoints.
    pub(crate) fn all(&self) -> Vec<(Id, SharedEndpoint)> {
        let slots = locked(&self.slots);
        let slots = slots.iter();
        slots
            .map(|(id, slot)| (id.clone(), Arc::clone(slot)))
            .collect()
    }

    /// Adds an endpoint.
    pub(crate) fn insert(&self, id: Id, endpoint: EndpointRecord) -> Result<(), String> {
        let stored = self.stored_endpoints.put(&id, &endpoint);
        stored.map_err(|error| error.to_string())?;
        locked(&self.slots).insert(id, Arc::new(Mutex::new(endpoint)));
        Ok(())
    }

    /// Removes an endpoint, and everything that was made for it.
    pub(crate) fn forget(&self, id: &Id, slot: &SharedEndpoint) {
        self.release(id, &mut locked(slot));
        log_failure("cannot remove a record", self.stored_endpoints.remove(id));
        locked(&self.slots).remove(id);
    }
}

/// Logs a failure of a step that nothing else depends on.
pub(crate) fn log_failure<E: std::fmt::Display>(what: &str, done: Result<(), E>) {
    if let Err(error) = done {
        eprintln!("grantway-docker: {what}: {error}");
    }
}
