//! State that every port has, whether of a NIC or of a guest.

use net::packet::too_big::TooBig;

/// State that every port has.
#[derive(Debug, Default)]
pub struct PortCommon {
    /// Names of the port's firewall rules, in the bridge's order.
    pub rule_names: Vec<String>,
    /// Rate limit and counters of errors to the port's senders about packets that exceed another
    /// port's MTU.
    pub too_big: TooBig,
}
