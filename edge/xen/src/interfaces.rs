//! The interfaces of this domain in the xenstore: found, followed, answered, left clean.
//!
//! Below `backend/vif` the toolstack has made a directory for each interface of each guest. This
//! module knows nothing of grants and events: [`crate::platform`] joins both.

use crate::netif::features::{BadFront, Chosen, back_nodes, chosen};
use crate::netif::settings::Settings;
use crate::netif::states::{First, first, of_node, shown};
use crate::store::{Channel, Store, StoreError};
use abi::{ConnId, XenbusState};
use std::collections::{BTreeSet, VecDeque};
use vif::netif::BackRecord;

/// Where the toolstack makes interfaces, in this domain's part of the xenstore.
const BASE: &str = "backend/vif";
/// Interfaces that are served at once.
pub const INTERFACES_MAX: usize = 256;

/// The frontend's node that says that it hears only the groups which it has asked for.
const CHOOSES_GROUPS: &str = "request-multicast-control";

/// An interface as the toolstack names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The guest's domain.
    pub domain: u16,
    /// Its interface's number.
    pub device: u32,
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// There is a new interface to serve.
    Came(ConnId),
    /// It is no more.
    Gone(ConnId),
}

/// One interface that is served.
#[derive(Debug)]
pub struct Interface {
    /// What the toolstack calls it.
    pub key: Key,
    /// What the toolstack wants of it.
    pub settings: Settings,
    /// Whether it is taken over from a backend that is no more, and has not been connected since.
    pub resumes: bool,
    /// Whether the frontend hears only the groups that it has asked for.
    pub chooses_groups: bool,
    /// What the frontend has written, once that was looked at.
    pub chosen: Option<Chosen>,
    backend: String,
    frontend: String,
    /// How far the driver has come.
    own: XenbusState,
    /// The frontend's state, as last read.
    front: XenbusState,
    /// The toolstack wants it to end.
    ending: bool,
}

/// All interfaces of this domain.
#[derive(Debug)]
pub struct Interfaces<C> {
    store: Store<C>,
    /// By connection.
    served: Vec<Option<Interface>>,
    news: VecDeque<News>,
    /// What has to be read again.
    stale: BTreeSet<Key>,
    /// Everything has to be read again.
    all_stale: bool,
    /// Whether this domain removes the nodes of an interface that has ended. In dom0 the toolstack
    /// does it; in a driver domain it does not.
    removes: bool,
}

impl<C: Channel> Interfaces<C> {
    /// Follows the interfaces of this domain.
    ///
    /// # Errors
    /// The xenstore cannot be asked.
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

    /// What carries the messages.
    pub fn channel(&self) -> &C {
        self.store.channel()
    }

    /// The interface of a connection, if there is one.
    #[must_use]
    pub fn get(&self, conn: ConnId) -> Option<&Interface> {
        self.served.get(conn.0 as usize)?.as_ref()
    }

    /// All interfaces that are served.
    pub fn iter(&self) -> impl Iterator<Item = (ConnId, &Interface)> {
        let all = (0..).map(ConnId).zip(&self.served);
        all.filter_map(|(conn, served)| Some((conn, served.as_ref()?)))
    }

    /// Looks at what has changed. What could not be read is read the next time.
    ///
    /// # Errors
    /// The xenstore's.
    pub fn look(&mut self) -> Result<(), StoreError> {
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
        while let Some(key) = self.stale.first().copied() {
            self.refresh(key)?;
            self.stale.remove(&key);
        }
        Ok(())
    }

    /// What has changed since it was last asked; [`Interfaces::look`] finds it.
    pub fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Whether [`Interfaces::look`] or [`Interfaces::news`] would find anything, without a word of
    /// the xenstore's.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.all_stale || !self.news.is_empty() || self.store.has_events()
    }

    /// Notes what a change of `path` makes stale.
    fn mark(&mut self, path: &str) {
        if let Some(rest) = path.strip_prefix(BASE) {
            let mut parts = rest.split('/').skip(1);
            let domain = parts.next().and_then(|part| part.parse().ok());
            let device = parts.next().and_then(|part| part.parse().ok());
            match domain.zip(device) {
                Some((domain, device)) => drop(self.stale.insert(Key { domain, device })),
                // Something above the interfaces: some of them may be new, or gone.
                None => self.all_stale = true,
            }
            return;
        }
        let of = |served: &&Interface| {
            let below = path.strip_prefix(&served.frontend);
            below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let found = self.served.iter().flatten().find(of);
        self.stale.extend(found.map(|served| served.key));
    }

    /// Every interface that there is.
    fn find(&mut self) -> Result<Vec<Key>, StoreError> {
        let mut keys = Vec::new();
        for domain in self.store.list(BASE)? {
            let Ok(number) = domain.parse() else { continue };
            for device in self.store.list(&format!("{BASE}/{domain}"))? {
                keys.extend(device.parse().ok().map(|device| Key {
                    domain: number,
                    device,
                }));
            }
        }
        Ok(keys)
    }

    /// Reads an interface's states again.
    fn refresh(&mut self, key: Key) -> Result<(), StoreError> {
        let backend = format!("{BASE}/{}/{}", key.domain, key.device);
        let conn = self.iter().find(|(_, served)| served.key == key);
        let conn = conn.map(|(conn, _)| conn);
        let Some(frontend) = self.store.read(&format!("{backend}/frontend"))? else {
            return conn.map_or(Ok(()), |conn| self.part_with(conn));
        };
        let own = self.store.read(&format!("{backend}/state"))?;
        let own = of_node(own.as_deref());
        let online = self.store.read(&format!("{backend}/online"))?;
        let online = online.is_none_or(|online| online.trim() != "0");
        let front = self.store.read(&format!("{frontend}/state"))?;
        let front = of_node(front.as_deref());
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
                // Closing is never this end's word: it goes straight to Closed.
                served.ending |= own == XenbusState::Closing || !online;
            }
            return Ok(());
        }
        match first(own, online) {
            First::Nothing => Ok(()),
            First::Finish if own == XenbusState::Closed => Ok(()),
            First::Finish => self.finish(&backend, !online),
            how @ (First::Serve | First::Resume) => {
                let node = |name: &str| self.store.read(&format!("{backend}/{name}")).ok()?;
                let settings = match Settings::of(node) {
                    Ok(settings) => settings,
                    Err(error) => return self.report(&backend, &error.to_string()),
                };
                self.serve(Interface {
                    key,
                    settings,
                    resumes: how == First::Resume,
                    chooses_groups,
                    chosen: None,
                    backend,
                    frontend,
                    own: XenbusState::Initialising,
                    front,
                    ending: false,
                })
            }
        }
    }

    fn serve(&mut self, interface: Interface) -> Result<(), StoreError> {
        let free = self.served.iter().position(Option::is_none);
        let place = free.unwrap_or(self.served.len());
        if place >= INTERFACES_MAX {
            let why = format!("more than {INTERFACES_MAX} interfaces");
            return self.report(&interface.backend, &why);
        }
        // One watch for all of it: a domain may have so many watches and no more.
        self.store.watch(&interface.frontend)?;
        match self.served.get_mut(place) {
            Some(slot) => *slot = Some(interface),
            None => self.served.push(Some(interface)),
        }
        self.news.push_back(News::Came(ConnId(place as u32)));
        Ok(())
    }

    /// Tells people, where the toolstack shows it, why an interface is not served.
    fn report(&mut self, backend: &str, why: &str) -> Result<(), StoreError> {
        // What is written there is an event: an interface that is refused again and again for one
        // reason would never be left alone.
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

    /// The driver cannot serve an interface.
    ///
    /// # Errors
    /// The xenstore's.
    pub fn refuse(&mut self, conn: ConnId, why: &str) -> Result<(), StoreError> {
        let Some(served) = self.take(conn) else {
            return Ok(());
        };
        let _ = self.store.unwatch(&served.frontend);
        self.report(&served.backend, why)
    }

    /// What the driver is shown of the other end; none: there is no such connection.
    #[must_use]
    pub fn shown(&self, conn: ConnId) -> Option<XenbusState> {
        let served = self.get(conn)?;
        Some(shown(served.own, served.ending, served.front))
    }

    /// Reads what the frontend has chosen.
    ///
    /// # Errors
    /// Why it makes no sense.
    pub fn choose(&mut self, conn: ConnId) -> Result<Option<&Chosen>, BadFront> {
        let slot = self.served.get_mut(conn.0 as usize);
        let Some(served) = slot.and_then(Option::as_mut) else {
            return Ok(None);
        };
        let store = &mut self.store;
        let frontend = &served.frontend;
        let node = |name: &str| store.read(&format!("{frontend}/{name}")).ok()?;
        served.chosen = Some(chosen(served.settings.mac, node)?);
        Ok(served.chosen.as_ref())
    }

    /// The driver has reached `state`, and offers `offer`.
    ///
    /// # Errors
    /// The xenstore's.
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
            // The frontend has all this from the backend before, and is not to notice.
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
            return self.part_with(conn);
        }
        if state == XenbusState::Closed && ending {
            self.part_with(conn)?;
            return self.clear(&backend);
        }
        Ok(())
    }

    /// Says that an interface that this domain does not serve is closed, and removes it if it is
    /// `offline`.
    fn finish(&mut self, backend: &str, offline: bool) -> Result<(), StoreError> {
        let closed = [("state", (XenbusState::Closed as u8).to_string())];
        self.store.write_all(backend, &closed)?;
        if offline {
            self.clear(backend)?;
        }
        Ok(())
    }

    /// Removes what is left of an interface that has ended, where that is this domain's to do.
    fn clear(&mut self, backend: &str) -> Result<(), StoreError> {
        if !self.removes {
            return Ok(());
        }
        self.store.remove(backend)?;
        // The guest's directory goes with its last interface.
        if let Some((guest, _)) = backend.rsplit_once('/')
            && self.store.list(guest)?.is_empty()
        {
            self.store.remove(guest)?;
        }
        Ok(())
    }

    /// An interface is no more.
    fn part_with(&mut self, conn: ConnId) -> Result<(), StoreError> {
        if let Some(served) = self.take(conn) {
            self.news.push_back(News::Gone(conn));
            // One that was refused for it may be served now.
            self.all_stale = true;
            // The guest may have taken the node with it.
            let _ = self.store.unwatch(&served.frontend);
        }
        Ok(())
    }

    fn take(&mut self, conn: ConnId) -> Option<Interface> {
        self.served.get_mut(conn.0 as usize)?.take()
    }
}

/// Whether a node switches something on, as xen-netback reads it: a number that is not 0.
fn is_set(node: &str) -> bool {
    node.trim().parse::<u32>().is_ok_and(|number| number != 0)
}

#[cfg(test)]
mod tests;
