//! Executes calls about endpoints, and undoes them.

use crate::api::{CreateEndpoint, EndpointCall, Id, Join, ProgramExternalConnectivity};
use crate::driver::{RemoteDriver, locked, log_failure};
use crate::network::unknown;
use crate::ports::published;
use crate::record::{EndpointRecord, JoinedContainer};
use cni::attachment::{Attachment, machine_info};
use netdev::TapSpec;
use serde_json::{Value, json};
use std::sync::Arc;

/// Length of the transmit queue of an interface until its guest is attached, packets.
const TX_QUEUE: u32 = 500;
/// The name of the interface of an endpoint that Docker has not named yet.
const IFNAME: &str = "eth0";

/// Returns the name of an endpoint's interface before Docker moves it: 15 bytes.
pub(crate) fn tap_name(id: &Id) -> String {
    format!("gwd{}", id.short(12))
}

/// Returns a MAC that is practically unique.
fn mac(id: &Id) -> String {
    let digits = id.as_str().as_bytes().chunks(2).take(5);
    let bytes = digits.map(|pair| format!(":{}", pair.escape_ascii()));
    format!("02{}", bytes.collect::<String>())
}

impl RemoteDriver {
    /// Records an endpoint. An earlier endpoint with the same address is a leftover: Docker assigns
    /// an address only once, but does not report the end of containers that were killed together
    /// with it.
    pub(crate) fn create_endpoint(&self, call: CreateEndpoint) -> Result<Value, String> {
        let network = self
            .network(&call.network)
            .ok_or_else(|| unknown(&call.network))?;
        let given = call.interface.unwrap_or_default();
        let own_mac = mac(&call.endpoint);
        let answer = match given.mac.is_empty() {
            true => json!({ "Interface": { "MacAddress": own_mac } }),
            false => json!({ "Interface": {} }),
        };
        let addresses = [given.address, given.address_ipv6].into_iter();
        let endpoint = EndpointRecord {
            network_id: call.network,
            network,
            addresses: addresses.filter(|address| !address.is_empty()).collect(),
            mac: Some(given.mac)
                .filter(|mac| !mac.is_empty())
                .unwrap_or(own_mac),
            joined: None,
            is_gateway: false,
            ports: Vec::new(),
        };
        if endpoint.addresses.is_empty() {
            return Err(
                "unsupported: an endpoint without an address (`--ipam-driver null`)".into(),
            );
        }
        for (id, slot) in self.all() {
            let is_left = locked(&slot).has_address_of(&endpoint) || id == call.endpoint;
            if is_left {
                self.forget(&id, &slot);
            }
        }
        self.insert(call.endpoint, endpoint).map(|()| answer)
    }

    /// Removes an endpoint. Succeeds if it is unknown.
    pub(crate) fn delete_endpoint(&self, call: &EndpointCall) -> Result<(), String> {
        if let Some(slot) = self.slot(&call.endpoint) {
            self.forget(&call.endpoint, &slot);
        }
        Ok(())
    }

    /// Creates the interface that Docker is to move into the container, and begins to watch the
    /// container's namespace.
    pub(crate) fn join(self: &Arc<Self>, call: Join) -> Result<Value, String> {
        let id = call.endpoint;
        let missing = || format!("the endpoint {} is unknown to the driver", id.short(12));
        let slot = self.slot(&id).ok_or_else(missing)?;
        if !call.sandbox.starts_with('/') {
            return Err(format!(
                "the sandbox {:?} is not an absolute path",
                call.sandbox
            ));
        }
        let mut endpoint = locked(&slot);
        self.release(&id, &mut endpoint);
        let machine = machine_info(&self.conf(&endpoint)).map_err(|failure| failure.to_string())?;
        let bytes = mac_bytes(&endpoint.mac);
        let tap = TapSpec {
            mac: Some(bytes.ok_or_else(|| format!("{:?} is not a MAC", endpoint.mac))?),
            mtu: endpoint.network.mtu(),
            vnet_header: true,
            tx_queue: TX_QUEUE,
            // The number of queues must suit the guest, or the machine creates another interface.
            shares: u32::from(machine.workers > 1),
            ..owned(tap_name(&id), None, &machine.name)
        };
        netdev::open_queues(&tap).map_err(|error| error.to_string())?;
        endpoint.joined = Some(JoinedContainer {
            sandbox: call.sandbox,
            owner: machine.name,
            placed: None,
        });
        if let Err(error) = self.stored_endpoints.put(&id, &*endpoint) {
            self.release(&id, &mut endpoint);
            return Err(error.to_string());
        }
        let gateway = |is_v6| endpoint.network.gateway(is_v6).unwrap_or_default();
        let answer = json!({
            "InterfaceName": { "SrcName": tap.ifname, "DstPrefix": "eth" },
            "Gateway": gateway(false),
            "GatewayIPv6": gateway(true),
        });
        drop(endpoint);
        self.watch(id, slot);
        Ok(answer)
    }

    /// Detaches the guest of an endpoint. Succeeds if it has none.
    pub(crate) fn leave(&self, call: &EndpointCall) {
        let id = &call.endpoint;
        let Some(slot) = self.slot(id) else { return };
        let mut endpoint = locked(&slot);
        self.release(id, &mut endpoint);
        let stored = self.stored_endpoints.put(id, &*endpoint);
        log_failure("the record of a left endpoint is old", stored);
    }

    /// Publishes ports. Attaches the guest first if the container exists already, so that Docker
    /// learns of a failure.
    pub(crate) fn publish_ports(&self, call: &ProgramExternalConnectivity) -> Result<(), String> {
        let id = &call.endpoint;
        let missing = || format!("the endpoint {} is unknown to the driver", id.short(12));
        let slot = self.slot(id).ok_or_else(missing)?;
        let ports = published(call.options.as_ref())?;
        let mut endpoint = locked(&slot);
        self.withdraw(id, &mut endpoint);
        endpoint.is_gateway = true;
        endpoint.ports = ports;
        let stored = self.stored_endpoints.put(id, &*endpoint);
        let opened = stored.map_err(|error| error.to_string()).and_then(|()| {
            let attachment = self.attachment(id, &endpoint);
            let opened = attachment
                .and_then(|one| one.open(&endpoint.ports, &endpoint.interface_addresses(false)));
            opened.map_err(|error| error.to_string())
        });
        let placed = opened.and_then(|()| self.attach_if_moved(id, &mut endpoint, None).map(drop));
        if placed.is_err() {
            self.withdraw(id, &mut endpoint);
        }
        placed
    }

    /// Withdraws ports. Succeeds if none are published.
    pub(crate) fn unpublish_ports(&self, call: &EndpointCall) {
        let id = &call.endpoint;
        let Some(slot) = self.slot(id) else { return };
        let mut endpoint = locked(&slot);
        self.withdraw(id, &mut endpoint);
        endpoint.is_gateway = false;
        let stored = self.stored_endpoints.put(id, &*endpoint);
        log_failure("the record of withdrawn ports is old", stored);
    }

    /// Withdraws the published ports of an endpoint.
    fn withdraw(&self, id: &Id, endpoint: &mut EndpointRecord) {
        let ports = std::mem::take(&mut endpoint.ports);
        let attachment = self.attachment(id, endpoint);
        let closed = attachment.and_then(|attachment| attachment.close(&ports));
        log_failure("published ports stay", closed);
    }

    /// Undoes everything that was done for the container of an endpoint.
    pub(crate) fn release(&self, id: &Id, endpoint: &mut EndpointRecord) {
        self.withdraw(id, endpoint);
        let attachment = self.attachment(id, endpoint);
        let Some(joined) = endpoint.joined.take() else {
            return;
        };
        if let Some(placed) = joined.placed {
            let detached = attachment.and_then(|attachment| attachment.detach());
            log_failure("a guest stays attached", detached);
            // If no machine has removed the interface, it still exists, and Docker would move it
            // back.
            let tap = owned(placed.ifname, Some(joined.sandbox), &joined.owner);
            let _absent = netdev::remove(&tap, None, &[]);
        }
        let tap = owned(tap_name(id), None, &joined.owner);
        let removed = netdev::remove(&tap, None, &[]);
        log_failure("an interface stays", removed);
    }

    /// Returns the configuration of an endpoint's network, in CNI's form.
    pub(crate) fn conf(&self, endpoint: &EndpointRecord) -> Value {
        endpoint.network.conf(&endpoint.mac, &self.pending)
    }

    /// Returns the attachment of an endpoint's container.
    pub(crate) fn attachment(
        &self,
        id: &Id,
        endpoint: &EndpointRecord,
    ) -> Result<Attachment, cni::CniError> {
        let joined = endpoint.joined.as_ref();
        let sandbox = joined.map_or("/", |joined| &joined.sandbox);
        let placed = joined.and_then(|joined| joined.placed.as_ref());
        let ifname = placed.map_or(IFNAME, |placed| &placed.ifname);
        Attachment::of(self.conf(endpoint), id.as_str(), sandbox, ifname)
    }
}

/// Returns a persistent TAP of a machine.
fn owned(ifname: String, netns: Option<String>, owner: &str) -> TapSpec {
    TapSpec {
        ifname,
        netns,
        persistent: Some(owner.to_owned()),
        ..TapSpec::default()
    }
}

fn mac_bytes(text: &str) -> Option<[u8; 6]> {
    let bytes = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok());
    bytes.collect::<Option<Vec<_>>>()?.try_into().ok()
}
