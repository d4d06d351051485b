//! State that NICs and guests have alike.

use net::packet::too_big::TooBig;

/// State of any port.
#[derive(Debug, Default)]
pub struct PortCommon {
    /// The names of its rules, in the bridge's order.
    pub rule_names: Vec<String>,
    /// Rate limit and counts of errors to senders of packets that exceed another port's MTU.
    pub too_big: TooBig,
}
