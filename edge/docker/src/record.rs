//! Endpoints: interfaces of containers in networks.

use crate::api::Id;
use crate::network::DockerNetwork;
use cni::PortMapping;
use cni::attachment::InterfaceAddresses;
use serde::{Deserialize, Serialize};

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndpointRecord {
    pub(crate) network_id: Id,
    pub(crate) network: DockerNetwork,
    /// Addresses with prefix lengths, which Docker has assigned.
    pub(crate) addresses: Vec<String>,
    pub(crate) mac: String,
    pub(crate) joined: Option<JoinedContainer>,
    /// Whether the container reaches other networks through it.
    pub(crate) is_gateway: bool,
    /// Ports that are published now.
    pub(crate) ports: Vec<PortMapping>,
}

/// The container of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JoinedContainer {
    /// The path of its network namespace, which may not exist yet.
    pub(crate) sandbox: String,
    /// The machine that owns the interface.
    pub(crate) owner: String,
    pub(crate) placed: Option<AttachedInterface>,
}

/// The interface in a container, once its guest was attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachedInterface {
    pub(crate) ifname: String,
    /// The interface's index. A different index means that the machine has recreated the interface.
    pub(crate) index: u32,
    /// Whether the machine sets the default routes: Docker sets them only once.
    pub(crate) has_routes: bool,
}

impl EndpointRecord {
    /// Returns its addresses, and its gateways if the machine sets the routes.
    pub(crate) fn interface_addresses(&self, has_routes: bool) -> InterfaceAddresses {
        let gateways = match has_routes && self.is_gateway {
            true => self.network.gateways.clone(),
            false => Vec::new(),
        };
        InterfaceAddresses {
            addresses: self.addresses.clone(),
            gateways,
        }
    }

    /// Returns whether both are in the same network with a common address.
    pub(crate) fn has_address_of(&self, other: &Self) -> bool {
        let is_same = |address| other.addresses.contains(address);
        self.network_id == other.network_id && self.addresses.iter().any(is_same)
    }
}
