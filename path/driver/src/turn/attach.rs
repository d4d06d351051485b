//! Adds and removes guests while the driver runs, on events of the platform or requests of the
//! manager.

use super::Driver;
use crate::firewall;
use crate::flow_memory::vif_identity;
use crate::guests::GuestChange;
use crate::vifs::{VifPort, port_name};
use abi::{ConnId, XenbusState};
use config::domain::VifConfig;
use net::packet::Mac;
use net::packet::announce::announcement;
use nic::Frame;
use runtime::platform::Wait;
use serde_json::{Value, json};
use shmem::Span;

impl<W: Wait> Driver<W> {
    /// Adds and removes the ports of guests that the platform has added and removed.
    pub(crate) fn serve_changes(&mut self) {
        for change in self.guests.changes() {
            match change {
                GuestChange::Added { vif, access } => {
                    let conn = ConnId(vif.conn);
                    if let Err(why) = self.add_guest(&vif, access) {
                        runtime::start::print_line(format_args!("vif.{}: {why}", vif.name));
                        self.guests.refused(conn, &why);
                    }
                }
                GuestChange::Removed(conn) => {
                    if let Some((number, _)) = self.vif_of(conn) {
                        self.remove_port(number);
                    }
                }
            }
        }
    }

    /// Advances the handshakes of guests whose connection has changed and of guests that could not
    /// advance before. It skips all others, because each check is a call and there may be hundreds
    /// of guests.
    pub(crate) fn advance(&mut self) {
        let Self { waiter, switch, .. } = self;
        for vif in switch.ports.vifs_mut() {
            if waiter.has_changed(vif.conn()) || !vif.last_error.is_empty() {
                vif.advance();
            }
        }
        self.devices_changed();
        self.may_announce = true;
        self.announce(shmem::time::monotonic_ns());
        self.watch_all();
    }

    /// Announces newly connected guests to all stations. Without the announcement, a domain whose
    /// ARP request was unanswered retries only after a second, and a domain that has cached another
    /// MAC for the address uses that MAC for half a minute.
    pub(super) fn announce(&mut self, now_ns: u64) {
        // Most guests connect within the wait, and get the first announcement.
        let too_early = self.nics_wait_until_ns.is_none() || self.nics_wait(now_ns).is_some();
        if too_early || !std::mem::take(&mut self.may_announce) {
            return;
        }
        let connected = |vif: &VifPort| vif.state() == XenbusState::Connected;
        let vifs = self.switch.ports.vifs();
        let connected = vifs.filter(|(_, vif)| connected(vif));
        for number in connected.map(|(number, _)| number).collect::<Vec<_>>() {
            let Some(vif) = self.switch.ports.vif_mut(number) else {
                continue;
            };
            let mac = Mac(vif.mac());
            let addresses = vif.announcement.take_due(self.all_connected_once);
            let frames = addresses.into_iter().map(|ip| announcement(mac, ip));
            let mut frames: Vec<_> = frames.filter_map(|it| Frame::with_header(&it)).collect();
            if !frames.is_empty() {
                self.switch.forward(number, now_ns, &mut frames);
            }
        }
    }

    /// Adds the interface that `vif` describes in the form of a configuration. Idempotent: for an
    /// existing interface, it repeats its answer, because the manager may have missed the first
    /// one.
    pub(super) fn attach(&mut self, vif: &str) -> Result<Value, String> {
        let vif = parse_vif(vif)?;
        let conn = ConnId(vif.conn);
        match self.vif_of(conn) {
            Some((_, port)) if port.name == port_name(&vif) => {}
            Some((_, port)) => {
                return Err(format!("connection {} belongs to {}", conn.0, port.name));
            }
            None => {
                if vif.queue.is_some() || vif.device_queue.is_some() {
                    return Err("dedicated queues of a NIC are assigned at the start".into());
                }
                let access = self.guests.access(&vif, Span::EMPTY)?;
                let number = self.add_guest(&vif, access)?;
                if let Some(port) = self.switch.ports.vif_mut(number) {
                    // The other end's state may have changed before the port existed.
                    port.advance();
                }
                self.may_announce = true;
                self.announce(shmem::time::monotonic_ns());
                self.watch_all();
            }
        }
        Ok(json!({ "attached": conn.0 }))
    }

    /// Removes an interface. Afterwards, the driver neither uses nor maps any page that the guest
    /// has granted.
    pub(super) fn detach(&mut self, conn: ConnId) -> Result<Value, String> {
        let number = self.vif_of(conn).map(|(number, _)| number);
        if let Some(number) = number
            && let Some(vif) = self.switch.ports.vif(number)
        {
            if vif.queue.is_some() {
                return Err(format!("{} has a dedicated queue of a NIC", vif.name));
            }
            self.flush_held(number);
            if let Some(vif) = self.switch.ports.vif_mut(number) {
                vif.publish();
                vif.disconnect()?;
            }
            self.remove_port(number);
        }
        Ok(json!({ "detached": conn.0 }))
    }

    /// Replaces the rules and limits of an interface, and discards the counts of its previous
    /// rules.
    pub(super) fn change(&mut self, vif: &str) -> Result<Value, String> {
        let vif = parse_vif(vif)?;
        let Some((number, port)) = self.vif_of(ConnId(vif.conn)) else {
            return Err(format!("connection {} belongs to no guest", vif.conn));
        };
        if port.queue.is_some() {
            return Err(format!("{} has a dedicated queue of a NIC", vif.name));
        }
        self.update_flow_table(number, &vif.settings.rules, vif_identity(&vif))?;
        self.flush_held(number);
        let rules = firewall::bridge_rules(&vif.settings.rules);
        self.switch.bridge.set_rules(number, &rules);
        self.fairness.insert(number, &vif);
        for queues in &mut self.queues {
            queues.change(&mut self.switch.ports, number, &vif);
        }
        if let Some(port) = self.switch.ports.vif_mut(number) {
            port.egress.set(vif.to_guest.as_ref());
            port.common.rule_names = firewall::rule_names(&vif.settings.rules);
        }
        Ok(json!({ "changed": vif.conn }))
    }

    /// Delivers the frames that large receive offload holds in the pages of the guest at `number`.
    fn flush_held(&mut self, number: usize) {
        let now_ns = shmem::time::monotonic_ns();
        for queues in &mut self.queues {
            queues.flush(&mut self.switch, number, now_ns);
        }
    }

    /// Returns the port of a connection and the port's number.
    fn vif_of(&self, conn: ConnId) -> Option<(usize, &VifPort)> {
        let mut vifs = self.switch.ports.vifs();
        vifs.find(|(_, vif)| vif.conn() == conn)
    }
}

/// Parses an interface's description. Rejects unknown keys, because they may be restrictions that
/// this driver would not enforce.
fn parse_vif(vif: &str) -> Result<VifConfig, String> {
    serde_json::from_str(vif).map_err(|error| {
        let error = error.to_string();
        let unknown = error
            .split_once(", expected")
            .or(error.split_once(" at line"));
        match unknown {
            Some((unknown, _)) if unknown.starts_with("unknown ") => format!(
                "the driver domain is older than the manager ({unknown}): restart it with the \
                 installed program (`grantway upgrade`, or `grantway restart` with its \
                 name)"
            ),
            _ => format!("not a valid interface: {error}"),
        }
    })
}
