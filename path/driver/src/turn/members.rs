//! Adds and removes the driver's ports. Start-up adds the ports of the configuration by the same
//! functions.

use super::Driver;
use crate::dedicated::DedicatedReceiver;
use crate::dedicated::queue::DedicatedQueue;
use crate::firewall;
use crate::flow_memory;
use crate::guests::guest_port;
use crate::in_place::InPlacePorts;
use crate::nics::NicPort;
use crate::ports::BridgePort;
use crate::vifs::VifPort;
use crate::vifs::memory::GuestAccess;
use crate::vmq::NicQueues;
use config::domain::{NicConfig, VifConfig};
use config::rule::{FirewallRule, keep_state};
use net::bridge;
use nic::dma::RemoteQueue;
use runtime::platform::Wait;
use std::rc::Rc;

impl<W: Wait> Driver<W> {
    /// Adds a NIC and returns the number of its port. The caller adds NICs before guests, so that
    /// guests can get their queues.
    pub(crate) fn add_nic(&mut self, nic: &NicConfig, port: NicPort) -> Result<usize, String> {
        let guarded = bridge::PortConfig {
            addresses: nic.addresses.clone(),
            gateways: nic.gateways.clone(),
            rules: firewall::bridge_rules(&nic.settings.rules),
            ..bridge::PortConfig::nic()
        };
        let rules = (&nic.settings.rules[..], flow_memory::nic_identity(nic));
        let number = self.add_port(BridgePort::Nic(Box::new(port)), &guarded, rules)?;
        if let Some(mut queues) = NicQueues::new(number, nic, &self.settings.lro) {
            queues.recover(&mut self.switch.ports);
            self.queues.push(queues);
        }
        Ok(number)
    }

    /// Adds a guest and returns the number of its port. `access` accesses the guest's memory.
    pub(crate) fn add_guest(
        &mut self,
        vif: &VifConfig,
        access: Box<dyn GuestAccess>,
    ) -> Result<usize, String> {
        let (platform, ledger) = (Rc::clone(&self.platform), Rc::clone(&self.switch.ledger));
        let port = VifPort::new(vif, platform, ledger, access);
        let rules = (&vif.settings.rules[..], flow_memory::vif_identity(vif));
        let number = self.add_port(BridgePort::Vif(Box::new(port)), &guest_port(vif), rules)?;
        self.fairness.insert(number, vif);
        for queues in &mut self.queues {
            queues.add_guest(number, vif);
        }
        Ok(number)
    }

    /// Returns the driver's end of a queue of the device behind the wire at port `wire`.
    pub(crate) fn device_queue(&mut self, wire: usize, number: u32) -> Option<RemoteQueue> {
        self.switch.ports.nic_mut(wire)?.dedicated(number)
    }

    /// Assigns a dedicated queue of `wire` to `guest`. Both arguments hold a port number and the
    /// port's configuration.
    pub(crate) fn add_dedicated(
        &mut self,
        wire: (usize, &NicConfig),
        guest: (usize, &VifConfig),
        mut queue: DedicatedQueue,
    ) {
        let ports = InPlacePorts {
            nic: wire.0,
            guest: guest.0,
        };
        let Some(vif) = self.switch.ports.vif_mut(ports.guest) else {
            return;
        };
        let denying = firewall::kernel_deny_rules(wire, guest);
        for rule in &denying {
            queue.count_denied(rule.number);
        }
        vif.queue = Some(queue);
        self.switch.firewall.add_deny_rules(&denying);
        let receiver = DedicatedReceiver::new(ports, &self.settings.lro);
        self.dedicated.push(receiver);
    }

    /// Removes a port from the driver's lists, and drops its queued frames.
    pub(super) fn remove_port(&mut self, number: usize) {
        let now_ns = shmem::time::monotonic_ns();
        for queues in &mut self.queues {
            queues.remove_guest(&mut self.switch.ports, number, now_ns);
        }
        self.dedicated
            .retain(|receiver| receiver.ports.guest != number);
        self.fairness.remove(number);
        self.backpressure.remove(number);
        self.poll_set.remove(number);
        for vif in self.switch.ports.vifs_mut() {
            vif.sender.forget(number);
        }
        self.drop_flows(number);
        self.switch.remove(number, now_ns);
    }

    /// Gives a port a flow table if its rules are stateful, and frees its table if they are not.
    ///
    /// # Errors
    /// Returns an error if all tables are in use; nothing has then changed.
    pub(super) fn update_flow_table(
        &mut self,
        number: usize,
        rules: &[FirewallRule],
        identity: u64,
    ) -> Result<(), String> {
        match (
            self.switch.bridge.flows(number).is_some(),
            keep_state(rules),
        ) {
            (false, true) => {
                let now_ns = shmem::time::monotonic_ns();
                let flows = self.flow_memory.table(number, identity, now_ns)?;
                self.switch.bridge.set_flows(number, Some(flows));
            }
            (true, false) => self.drop_flows(number),
            _ => {}
        }
        Ok(())
    }

    fn drop_flows(&mut self, number: usize) {
        if let Some(flows) = self.switch.bridge.set_flows(number, None) {
            self.flow_memory.release(number, flows);
        }
    }

    /// Adds a port to the tables that NICs and guests share; returns its number.
    fn add_port(
        &mut self,
        mut port: BridgePort,
        guarded: &bridge::PortConfig,
        (rules, identity): (&[FirewallRule], u64),
    ) -> Result<usize, String> {
        port.common_and_gateways().0.rule_names = firewall::rule_names(rules);
        let number = self.switch.add(port, guarded)?;
        if let Err(why) = self.update_flow_table(number, rules, identity) {
            self.switch.remove(number, shmem::time::monotonic_ns());
            return Err(why);
        }
        self.poll_set.insert(number);
        Ok(number)
    }
}
