//! The interfaces of this domain in the xenstore: finds, watches, answers and removes them.
//!
//! The toolstack creates a directory below `backend/vif` for each interface of each guest. This
//! module does not handle grants and events; [`crate::platform`] adds these.

use crate::netif::features::{FrontendChoice, FrontendError, back_nodes, read_choice};
use crate::netif::settings::InterfaceSettings;
use crate::netif::states::{FirstAction, first_action, parse_state, published_state};
use crate::store::{Store, StoreChannel, StoreError};
use abi::{ConnId, XenbusState};
use nic::rate::TokenBucket;
use std::collections::{BTreeSet, VecDeque};
use vif::netif::BackRecord;

/// The toolstack's directory of interfaces, in this domain's part of the xenstore.
const BASE: &str = "backend/vif";
/// Maximum number of interfaces served at the same time.
pub const INTERFACES_MAX: usize = 256;

/// Maximum number of reads of one interface's states per second, and in a burst. Each write of a
/// guest causes a read, which costs some five requests to the xenstore, on which all guests depend.
const READS_PER_S: u64 = 50;
const READS_AT_ONCE: u32 = 32;

/// Node with which a frontend requests the filter of multicast groups.
const CHOOSES_GROUPS: &str = "request-multicast-control";

/// The toolstack's name of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceId {
    /// The guest's domain.
    pub domain: u16,
    /// The interface's number.
    pub device: u32,
}

/// A change to the set of interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceChange {
    /// A new interface to serve.
    Added(ConnId),
    /// An interface was removed.
    Removed(ConnId),
}

/// A served interface.
#[derive(Debug)]
pub struct XenInterface {
    /// The toolstack's name of the interface.
    pub key: InterfaceId,
    /// The toolstack's settings.
    pub settings: InterfaceSettings,
    /// Whether the interface is taken over from a previous backend and has not been connected
    /// since.
    pub resumes: bool,
    /// Whether the frontend receives only the groups that it has requested.
    pub chooses_groups: bool,
    /// The frontend's choices, once they have been read.
    pub chosen: Option<FrontendChoice>,
    backend: String,
    frontend: String,
    /// The driver's state.
    own: XenbusState,
    /// The frontend's state, as last read.
    front: XenbusState,
    /// Whether the toolstack has requested the end of the interface.
    ending: bool,
    /// Rate limit of reads of its states.
    reads: TokenBucket,
}

/// All interfaces of this domain.
#[derive(Debug)]
pub struct Interfaces<C> {
    store: Store<C>,
    /// By connection.
    served: Vec<Option<XenInterface>>,
    news: VecDeque<InterfaceChange>,
    /// Interfaces that must be read again.
    stale: BTreeSet<InterfaceId>,
    /// Whether everything must be read again.
    all_stale: bool,
    /// Whether this domain removes the nodes of an interface that has ended. The toolstack removes
    /// them in dom0, but not in a driver domain.
    removes: bool,
}

impl<C: StoreChannel> Interfaces<C> {
    /// Watches the interfaces of this domain.
    ///
    /// # Errors
    ///
    /// Returns an error if the xenstore does not answer.
    pub fn new(mut store: Store<C>) -> Result<Self, StoreError> {
        let domain = store.read("domid")?;
        store.watch(BASE)?;
        Ok(Self {
            store,
            served: Vec::new(),
            news: VecDeque::new(),
            stale: BTreeSet::new(),
            all_stale: true,
            removes: domain.is_some_and(|id| id.trim() != "0"),
        })
    }

    /// Returns the channel of messages.
    pub fn channel(&self) -> &C {
        self.store.channel()
    }

    /// Returns the interface of a connection, if it exists.
    #[must_use]
    pub fn get(&self, conn: ConnId) -> Option<&XenInterface> {
        self.served.get(conn.0 as usize)?.as_ref()
    }

    /// Returns all served interfaces.
    pub fn iter(&self) -> impl Iterator<Item = (ConnId, &XenInterface)> {
        let all = (0..).map(ConnId).zip(&self.served);
        all.filter_map(|(conn, served)| Some((conn, served.as_ref()?)))
    }

    /// Reads changes. Retries an interface that could not be read at the next call, and delays one
    /// that changes too often ([`Interfaces::due_ns`]). Reports an interface that the xenstore
    /// refuses to read or to watch, without delaying others.
    ///
    /// # Errors
    ///
    /// Returns an error if the xenstore fails or does not answer.
    pub fn read_changes(&mut self, now_ns: u64) -> Result<(), StoreError> {
        loop {
            match self.store.event() {
                Ok(Some(path)) => self.mark(&path),
                Ok(None) => break,
                Err(StoreError::Nonsense) => self.all_stale = true,
                Err(error) => return Err(error),
            }
        }
        if self.all_stale {
            let found = self.find()?;
            self.stale.extend(found);
            self.stale
                .extend(self.served.iter().flatten().map(|served| served.key));
            self.all_stale = false;
        }
        for key in Vec::from_iter(self.stale.iter().copied()) {
            let served = self.served.iter_mut().flatten();
            let mut reads = served.filter(|s| s.key == key).map(|s| &mut s.reads);
            if reads.next().is_some_and(|reads| !reads.take(now_ns, 1)) {
                continue;
            }
            match self.refresh(key) {
                Err(error @ (StoreError::Refused(_) | StoreError::TooLong)) => {
                    // If this fails, no other way to report the error remains.
                    let _ = self.report(&backend_of(key), &error.to_string());
                }
                refreshed => refreshed?,
            }
            self.stale.remove(&key);
        }
        Ok(())
    }

    /// Returns whether no interface has changed since it was last read.
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        self.stale.is_empty()
    }

    /// Returns the time from which [`Interfaces::read_changes`] reads an interface that has changed
    /// too often.
    #[must_use]
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let due = self.stale.iter().map(|key| {
            let served = self.served.iter().flatten().find(|s| s.key == *key);
            served.map_or(Some(now_ns), |served| served.reads.ready_at(now_ns, 1))
        });
        due.flatten().min()
    }

    /// Returns the next change that [`Interfaces::read_changes`] has found.
    pub fn next_change(&mut self) -> Option<InterfaceChange> {
        self.news.pop_front()
    }

    /// Returns whether [`Interfaces::read_changes`] or [`Interfaces::next_change`] would find
    /// anything, without a request to the xenstore.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.all_stale || !self.news.is_empty() || self.store.has_events()
    }

    /// Marks everything that a change of `path` makes stale.
    fn mark(&mut self, path: &str) {
        if let Some(rest) = path.strip_prefix(BASE) {
            let mut parts = rest.split('/').skip(1);
            let domain = parts.next().and_then(|part| part.parse().ok());
            let device = parts.next().and_then(|part| part.parse().ok());
            match domain.zip(device) {
                Some((domain, device)) => drop(self.stale.insert(InterfaceId { domain, device })),
                // After a change above the interfaces' nodes, interfaces may be new or removed.
                None => self.all_stale = true,
            }
            return;
        }
        let of = |served: &&XenInterface| {
            let below = path.strip_prefix(&served.frontend);
            below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let found = self.served.iter().flatten().find(of);
        self.stale.extend(found.map(|served| served.key));
    }

    /// Returns every existing interface.
    fn find(&mut self) -> Result<Vec<InterfaceId>, StoreError> {
        let mut keys = Vec::new();
        for domain in self.store.list(BASE)? {
            let Ok(number) = domain.parse() else { continue };
            for device in self.store.list(&format!("{BASE}/{domain}"))? {
                keys.extend(device.parse().ok().map(|device| InterfaceId {
                    domain: number,
                    device,
                }));
            }
        }
        Ok(keys)
    }

    /// Reads an interface's states again.
    fn refresh(&mut self, key: InterfaceId) -> Result<(), StoreError> {
        let backend = backend_of(key);
        let conn = self.iter().find(|(_, served)| served.key == key);
        let conn = conn.map(|(conn, _)| conn);
        let Some(frontend) = self.store.read(&format!("{backend}/frontend"))? else {
            return conn.map_or(Ok(()), |conn| self.remove(conn));
        };
        let own = self.store.read(&format!("{backend}/state"))?;
        let own = parse_state(own.as_deref());
        let online = self.store.read(&format!("{backend}/online"))?;
        let online = online.is_none_or(|online| online.trim() != "0");
        let front = self.store.read(&format!("{frontend}/state"))?;
        let front = parse_state(front.as_deref());
        let groups = self.store.read(&format!("{frontend}/{CHOOSES_GROUPS}"))?;
        let chooses_groups = groups.is_some_and(|groups| is_set(&groups));
        if let Some(conn) = conn {
            if let Some(served) = self
                .served
                .get_mut(conn.0 as usize)
                .and_then(Option::as_mut)
            {
                served.front = front;
                served.chooses_groups = chooses_groups;
                // Only the toolstack writes Closing; this end changes directly to Closed.
                served.ending |= own == XenbusState::Closing || !online;
            }
            return Ok(());
        }
        match first_action(own, online) {
            FirstAction::Nothing => Ok(()),
            FirstAction::Finish if own == XenbusState::Closed => Ok(()),
            FirstAction::Finish => self.finish(&backend, !online),
            how @ (FirstAction::Serve | FirstAction::Resume) => {
                let node = |name: &str| self.store.read(&format!("{backend}/{name}")).ok()?;
                let settings = match InterfaceSettings::of(node) {
                    Ok(settings) => settings,
                    Err(error) => return self.report(&backend, &error.to_string()),
                };
                self.serve(XenInterface {
                    key,
                    settings,
                    resumes: how == FirstAction::Resume,
                    chooses_groups,
                    chosen: None,
                    backend,
                    frontend,
                    own: XenbusState::Initialising,
                    front,
                    ending: false,
                    reads: TokenBucket::new(READS_PER_S, READS_AT_ONCE),
                })
            }
        }
    }

    fn serve(&mut self, interface: XenInterface) -> Result<(), StoreError> {
        let free = self.served.iter().position(Option::is_none);
        let place = free.unwrap_or(self.served.len());
        if place >= INTERFACES_MAX {
            let why = format!("more than {INTERFACES_MAX} interfaces");
            return self.report(&interface.backend, &why);
        }
        // A single watch, because the number of watches of a domain is limited.
        self.store.watch(&interface.frontend)?;
        match self.served.get_mut(place) {
            Some(slot) => *slot = Some(interface),
            None => self.served.push(Some(interface)),
        }
        self.news
            .push_back(InterfaceChange::Added(ConnId(place as u32)));
        Ok(())
    }

    /// Writes the reason why an interface is not served to the node that the toolstack displays.
    fn report(&mut self, backend: &str, why: &str) -> Result<(), StoreError> {
        // The node is written only if its value changes, because each write causes an event.
        // Otherwise an interface that is repeatedly rejected for the same reason would cause events
        // forever.
        let mut node = |name| self.store.read(&format!("{backend}/{name}"));
        let said = (node("hotplug-status")?, node("hotplug-error")?);
        if (said.0.as_deref(), said.1.as_deref()) == (Some("error"), Some(why)) {
            return Ok(());
        }
        eprintln!("{backend}: {why}");
        let nodes = [
            ("hotplug-error", why.to_owned()),
            ("hotplug-status", "error".to_owned()),
        ];
        self.store.write_all(backend, &nodes).map(drop)
    }

    /// Reports that the driver cannot serve an interface.
    ///
    /// # Errors
    ///
    /// Returns the xenstore's error.
    pub fn refuse(&mut self, conn: ConnId, why: &str) -> Result<(), StoreError> {
        let Some(served) = self.take(conn) else {
            return Ok(());
        };
        let _ = self.store.unwatch(&served.frontend);
        self.report(&served.backend, why)
    }

    /// Returns the other end's state as the driver sees it, or `None` if the connection does not
    /// exist.
    #[must_use]
    pub fn published_state(&self, conn: ConnId) -> Option<XenbusState> {
        let served = self.get(conn)?;
        Some(published_state(served.own, served.ending, served.front))
    }

    /// Reads the frontend's choices.
    ///
    /// # Errors
    ///
    /// Returns the reason why they are invalid.
    pub fn choose(&mut self, conn: ConnId) -> Result<Option<&FrontendChoice>, FrontendError> {
        let slot = self.served.get_mut(conn.0 as usize);
        let Some(served) = slot.and_then(Option::as_mut) else {
            return Ok(None);
        };
        let store = &mut self.store;
        let frontend = &served.frontend;
        let node = |name: &str| store.read(&format!("{frontend}/{name}")).ok()?;
        served.chosen = Some(read_choice(served.settings.mac, node)?);
        Ok(served.chosen.as_ref())
    }

    /// Records that the driver has reached `state`, and offers `offer`.
    ///
    /// # Errors
    ///
    /// Returns the xenstore's error.
    pub fn set(
        &mut self,
        conn: ConnId,
        state: XenbusState,
        offer: Option<&BackRecord>,
    ) -> Result<(), StoreError> {
        let slot = self.served.get_mut(conn.0 as usize);
        let Some(served) = slot.and_then(Option::as_mut) else {
            return Ok(());
        };
        served.own = state;
        let mut nodes = offer.map(back_nodes).unwrap_or_default();
        nodes.push(("state", (state as u8).to_string()));
        match state {
            // The frontend has read all this from the previous backend, and must not notice the
            // change.
            XenbusState::InitWait if served.resumes => return Ok(()),
            XenbusState::Connected => {
                nodes.retain(|(name, _)| *name == "state");
                nodes.push(("hotplug-status", "connected".to_owned()));
                served.resumes = false;
            }
            XenbusState::Closed => served.resumes = false,
            _ => {}
        }
        let (backend, ending) = (served.backend.clone(), served.ending);
        let there = self.store.write_all(&backend, &nodes)?;
        if !there {
            return self.remove(conn);
        }
        if state == XenbusState::Closed && ending {
            self.remove(conn)?;
            return self.clear(&backend);
        }
        Ok(())
    }

    /// Marks an interface that this domain does not serve as closed. Removes it if it is `offline`.
    fn finish(&mut self, backend: &str, offline: bool) -> Result<(), StoreError> {
        let closed = [("state", (XenbusState::Closed as u8).to_string())];
        self.store.write_all(backend, &closed)?;
        if offline {
            self.clear(backend)?;
        }
        Ok(())
    }

    /// Removes the remaining nodes of an interface that has ended, if this domain, not the
    /// toolstack, removes them.
    fn clear(&mut self, backend: &str) -> Result<(), StoreError> {
        if !self.removes {
            return Ok(());
        }
        self.store.remove(backend)?;
        // The guest's directory is removed with its last interface.
        if let Some((guest, _)) = backend.rsplit_once('/')
            && self.store.list(guest)?.is_empty()
        {
            self.store.remove(guest)?;
        }
        Ok(())
    }

    /// Removes an interface.
    fn remove(&mut self, conn: ConnId) -> Result<(), StoreError> {
        if let Some(served) = self.take(conn) {
            self.news.push_back(InterfaceChange::Removed(conn));
            // A guest that was rejected because of this one may be served now.
            self.all_stale = true;
            // This fails if the guest has removed the node.
            let _ = self.store.unwatch(&served.frontend);
        }
        Ok(())
    }

    fn take(&mut self, conn: ConnId) -> Option<XenInterface> {
        self.served.get_mut(conn.0 as usize)?.take()
    }
}

/// Returns the directory of an interface.
fn backend_of(key: InterfaceId) -> String {
    format!("{BASE}/{}/{}", key.domain, key.device)
}

/// Returns whether a node enables a feature. As in xen-netback, that is a number other than 0.
fn is_set(node: &str) -> bool {
    node.trim().parse::<u32>().is_ok_and(|number| number != 0)
}

#[cfg(test)]
mod tests;
