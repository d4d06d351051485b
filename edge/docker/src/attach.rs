//! Attaches the guest of an endpoint once Docker has moved the interface into the container, and
//! again after the machine has lost the guest.

use crate::api::Id;
use crate::driver::{RemoteDriver, SharedEndpoint, locked, log_failure};
use crate::record::{AttachedInterface, EndpointRecord};
use cni::attachment::{Attachment, MachineInfo, machine_info};
use cni::namespace::find;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Time for which a namespace is checked frequently. Docker creates it within a fraction of a
/// second.
const WATCH_TIME: Duration = Duration::from_secs(30);
/// Pause between two checks: the program of the container starts only some ten milliseconds after
/// the interface was moved.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// The state of an endpoint's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachState {
    /// The container's namespace does not exist.
    Absent,
    /// Docker has not moved or configured the interface yet, or the endpoint has no container.
    Awaited,
    /// The guest is attached.
    Attached,
}

impl RemoteDriver {
    /// Watches the namespace of an endpoint until its guest is attached. A failure is logged; the
    /// reconciler retries.
    pub(crate) fn watch(self: &Arc<Self>, id: Id, slot: SharedEndpoint) {
        let driver = Arc::clone(self);
        let end = Instant::now() + WATCH_TIME;
        thread::spawn(move || {
            while Instant::now() < end {
                let mut endpoint = locked(&slot);
                if endpoint.joined.is_none() {
                    return;
                }
                match driver.attach_if_moved(&id, &mut endpoint, None) {
                    Ok(AttachState::Attached) => return,
                    Ok(AttachState::Absent | AttachState::Awaited) => {}
                    Err(error) => return log_failure("a container has no network yet", Err(error)),
                }
                drop(endpoint);
                thread::sleep(CHECK_INTERVAL);
            }
        });
    }

    /// Attaches the guest if its interface is in the container and the machine does not have it.
    /// `known` is an earlier state of the machine.
    pub(crate) fn attach_if_moved(
        &self,
        id: &Id,
        endpoint: &mut EndpointRecord,
        known: Option<&MachineInfo>,
    ) -> Result<AttachState, String> {
        let Some(joined) = &endpoint.joined else {
            return Ok(AttachState::Awaited);
        };
        if !Path::new(&joined.sandbox).exists() {
            return Ok(AttachState::Absent);
        }
        // Docker creates the file before it mounts the namespace there.
        let Ok(found) = find(&joined.sandbox, &endpoint.mac) else {
            return Ok(AttachState::Awaited);
        };
        let before = joined.placed.clone();
        let placed = match (&found, &before) {
            (Some(found), None) if found.is_up => AttachedInterface {
                ifname: found.ifname.clone(),
                index: found.index,
                has_routes: false,
            },
            (_, None) => return Ok(AttachState::Awaited),
            (Some(found), Some(before)) => AttachedInterface {
                index: found.index,
                ..before.clone()
            },
            (None, Some(before)) => before.clone(),
        };
        let sandbox = joined.sandbox.clone();
        let failed = |failure: cni::CniError| failure.to_string();
        let conf = self.conf(endpoint);
        let attachment = Attachment::of(conf.clone(), id.as_str(), &sandbox, &placed.ifname);
        let attachment = attachment.map_err(failed)?;
        let guest = attachment.guest();
        let has = |machine: &MachineInfo| machine.domains.contains(&guest);
        let is_attached = match known {
            Some(known) if has(known) => true,
            _ => has(&machine_info(&conf).map_err(failed)?),
        };
        let was_made_again = before.is_some_and(|before| before.index != placed.index);
        let lacks_routes = was_made_again && endpoint.is_gateway && !placed.has_routes;
        if is_attached && !lacks_routes {
            self.placed(id, endpoint, placed);
            return Ok(AttachState::Attached);
        }
        if is_attached {
            attachment.detach().map_err(failed)?;
        }
        // Docker sets the routes of an interface that it has moved, and of no other.
        let has_routes = placed.has_routes || lacks_routes || found.is_none();
        attachment
            .attach(&endpoint.interface_addresses(has_routes))
            .map_err(failed)?;
        let found = find(&sandbox, &endpoint.mac).ok().flatten();
        let placed = AttachedInterface {
            index: found.map_or(placed.index, |found| found.index),
            has_routes,
            ..placed
        };
        self.placed(id, endpoint, placed);
        Ok(AttachState::Attached)
    }

    /// Records where the guest is. Without the record, a later driver finds the interface by its
    /// MAC.
    fn placed(&self, id: &Id, endpoint: &mut EndpointRecord, placed: AttachedInterface) {
        let Some(joined) = &mut endpoint.joined else {
            return;
        };
        if joined.placed.as_ref() != Some(&placed) {
            joined.placed = Some(placed);
            let stored = self.stored_endpoints.put(id, endpoint);
            log_failure("the record of an attached endpoint is old", stored);
        }
    }
}
