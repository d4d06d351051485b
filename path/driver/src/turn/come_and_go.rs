//! Guests that come and go while the driver runs: by themselves, or told of by the monitor.

use super::Driver;
use crate::firewall;
use crate::guests::{Change, guest_port};
use crate::ports::Port;
use crate::switch::Switch;
use crate::vifs::memory::Reach;
use crate::vifs::{VifPort, port_name};
use abi::{ConnId, XenbusState};
use config::domain::VifConfig;
use net::packet::Mac;
use net::packet::announce::announcement;
use nic::Frame;
use runtime::platform::Waiting;
use serde_json::{Value, json};
use std::rc::Rc;
use vif::ring::Watch;

impl<W: Waiting> Driver<W> {
    /// Guests that have come, and guests that have gone.
    pub(crate) fn serve_changes(&mut self) {
        for change in self.guests.changes() {
            match change {
                Change::Came { vif, reach } => {
                    let conn = ConnId(vif.conn);
                    if let Err(why) = self.welcome(&vif, reach) {
                        runtime::start::print_line(format_args!("vif.{}: {why}", vif.name));
                        self.guests.refused(conn, &why);
                    }
                }
                Change::Gone(conn) => {
                    if let Some((number, _)) = self.vif_of(conn) {
                        self.part_with(number);
                    }
                }
            }
        }
    }

    /// Goes on with each guest whose connection has changed, and with those that could not go
    /// on before. Only these: to ask after one takes a call, and there may be hundreds.
    pub(crate) fn advance(&mut self) {
        let Self { waiter, switch, .. } = self;
        for vif in switch.ports.vifs_mut() {
            if waiter.has_changed(vif.conn()) || !vif.trouble.is_empty() {
                vif.advance();
            }
        }
        self.may_announce = true;
        self.announce(shmem::time::monotonic_ns());
        self.watch_all();
    }

    /// Tells all others where guests are that have come and are connected now, where they may have
    /// to know. Without it a domain that has asked for one in vain asks again only after a second,
    /// and one that knows another MAC under its address goes on with that for half a minute.
    pub(super) fn announce(&mut self, now_ns: u64) {
        // After a start they come one after another, and who is not there yet does not hear it.
        let too_early = self.nics_wait_ns.is_none() || self.nics_wait(now_ns).is_some();
        if too_early || !std::mem::take(&mut self.may_announce) {
            return;
        }
        let connected = |vif: &VifPort| vif.state() == XenbusState::Connected;
        let vifs = self.switch.ports.vifs();
        let waiting = vifs.filter(|(_, vif)| !vif.announced.is_empty() && connected(vif));
        for number in waiting.map(|(number, _)| number).collect::<Vec<_>>() {
            let Some(vif) = self.switch.ports.vif_mut(number) else {
                continue;
            };
            let (mac, addresses) = (Mac(vif.mac()), std::mem::take(&mut vif.announced));
            let frames = addresses.into_iter().map(|ip| announcement(mac, ip));
            let mut frames: Vec<_> = frames.filter_map(|it| Frame::with_header(&it)).collect();
            self.switch.forward(number, now_ns, &mut frames);
        }
    }

    /// Serves one interface more, which the monitor describes as it would have at the start. Asked
    /// for one that is there, it says the same again: who asks may have missed the answer.
    pub(super) fn attach(&mut self, vif: &str) -> Result<Value, String> {
        let vif = described(vif)?;
        let conn = ConnId(vif.conn);
        match self.vif_of(conn) {
            Some((_, port)) if port.name == port_name(&vif) => {}
            Some((_, port)) => {
                return Err(format!("connection {} is that of {}", conn.0, port.name));
            }
            None => {
                let reach = self.guests.reach(&vif)?;
                let number = self.welcome(&vif, reach)?;
                if let Some(port) = self.switch.ports.vif_mut(number) {
                    // What the other end has done was told before there was a port for it.
                    port.advance();
                }
                self.may_announce = true;
                self.announce(shmem::time::monotonic_ns());
                self.watch_all();
            }
        }
        Ok(json!({ "attached": conn.0 }))
    }

    /// Gives up all that it has of an interface: when this returns, nothing that the guest has
    /// granted is in use or mapped here.
    pub(super) fn detach(&mut self, conn: ConnId) -> Result<Value, String> {
        let number = self.vif_of(conn).map(|(number, _)| number);
        if let Some(number) = number
            && let Some(vif) = self.switch.ports.vif_mut(number)
        {
            if vif.queue.is_some() {
                return Err(format!("{} has a queue of a wire for its own", vif.name));
            }
            vif.leave()?;
            self.part_with(number);
        }
        Ok(json!({ "detached": conn.0 }))
    }

    /// An interface that it serves has other rules and other limits from now on. What the
    /// rules before have decided about is not counted any more.
    pub(super) fn change(&mut self, vif: &str) -> Result<Value, String> {
        let vif = described(vif)?;
        let Some((number, port)) = self.vif_of(ConnId(vif.conn)) else {
            return Err(format!("connection {} is of no guest", vif.conn));
        };
        if port.queue.is_some() {
            return Err(format!("{} has a queue of a wire for its own", vif.name));
        }
        let rules = firewall::rules(&vif.rules);
        self.switch.bridge.set_rules(number, &rules);
        self.switch.firewall.set(number, &vif.rules);
        self.fairness.insert(number, &vif);
        for queues in &mut self.queues {
            queues.change(&mut self.switch.ports, number, &vif);
        }
        if let Some(port) = self.switch.ports.vif_mut(number) {
            port.egress.set(vif.to_guest.as_ref());
        }
        Ok(json!({ "changed": vif.conn }))
    }

    /// Gives a guest a port of the bridge, and a place in everything that goes by ports; the port's
    /// number.
    fn welcome(&mut self, vif: &VifConfig, reach: Box<dyn Reach>) -> Result<usize, String> {
        let Switch { ports, ledger, .. } = &mut self.switch;
        let (platform, ledger) = (Rc::clone(&self.platform), Rc::clone(ledger));
        let port = VifPort::new(vif, platform, ledger, reach);
        let number = ports.insert(Port::Vif(Box::new(port)));
        if let Err(error) = self.switch.bridge.add(number, &guest_port(vif)) {
            self.switch.ports.remove(number);
            return Err(error.to_string());
        }
        self.switch.firewall.set(number, &vif.rules);
        self.switch.egress.make_room(number);
        self.fairness.insert(number, vif);
        self.holds.insert(number);
        self.poll_set.insert(number);
        for queues in &mut self.queues {
            queues.welcome(number, vif);
        }
        if self.watches.len() <= number {
            self.watches.resize(number + 1, Watch::NONE);
        }
        if vif.forwards {
            self.forwarding.insert(number, vif.name.clone());
        }
        Ok(number)
    }

    /// Takes away all that the guest of a port had. Frames for it that are held are lost.
    fn part_with(&mut self, number: usize) {
        let now_ns = shmem::time::monotonic_ns();
        self.switch.forget_queue(number, now_ns);
        self.switch.bridge.remove(number);
        self.switch.firewall.set(number, &[]);
        self.fairness.remove(number);
        self.holds.remove(number);
        self.poll_set.remove(number);
        if let Some(watch) = self.watches.get_mut(number) {
            *watch = Watch::NONE;
        }
        self.forwarding.remove(&number);
        for queues in &mut self.queues {
            queues.part_with(&mut self.switch.ports, number);
        }
        self.switch.ports.remove(number);
    }

    /// The port of a connection, and its number.
    fn vif_of(&self, conn: ConnId) -> Option<(usize, &VifPort)> {
        let mut vifs = self.switch.ports.vifs();
        vifs.find(|(_, vif)| vif.conn() == conn)
    }
}

/// An interface as the monitor describes it.
fn described(vif: &str) -> Result<VifConfig, String> {
    serde_json::from_str(vif).map_err(|error| format!("no interface: {error}"))
}
