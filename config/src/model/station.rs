//! The far end in the kernel.

use crate::address::{Cidr, MacAddress};
use crate::route::RouteConfig;
use abi::machine::Ipv6Settings;
use std::net::IpAddr;

/// The kernel's end of a TAP, or of a veth pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelPort {
    /// Name of the interface; `None`: that of the NIC, or `eth` and the vif's number.
    pub ifname: Option<String>,
    /// Network namespace: a name or an absolute path; `None`: that of `grantway`.
    pub netns: Option<String>,
    /// MAC; `None`: derived. Guests use the vif's.
    pub mac: Option<MacAddress>,
    /// Addresses.
    pub addresses: Vec<Cidr>,
    /// Default route.
    pub gateway: Option<IpAddr>,
    /// Additional routes, in the order in which they are added.
    pub routes: Vec<RouteConfig>,
    /// Length of the transmit queue of the kernel's end, packets; 0: the kernel's default.
    pub tx_queue: u32,
    /// Whether the networks of `addresses` may overlap an address or route of the namespace.
    pub allow_overlap: bool,
    /// IPv6 settings of the interface. Only for guests.
    pub ipv6: Ipv6Settings,
    /// Whether the interface outlives a machine that crashes. Only for guests.
    pub persistent: bool,
}

impl KernelPort {
    /// Returns the routers to which it sends: those of the default route and of `routes`.
    #[must_use]
    pub fn gateways(&self) -> Vec<IpAddr> {
        let routes = self.routes.iter().filter_map(|route| route.via);
        let mut all: Vec<IpAddr> = self.gateway.into_iter().chain(routes).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}
