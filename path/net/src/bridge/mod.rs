//! The bridge: where a frame goes, and which frames may go nowhere. Its clauses are numbered in
//! `specs/bridge.md` (BR-1 …).
//!
//! | module | job |
//! |---|---|
//! | `port` | what is configured: bounds, ports |
//! | `members` | the bridge and its ports |
//! | `forward` | where one frame goes, or a batch |
//! | `table` | which port a station is behind: bound for good, or learned for a while |
//! | `membership` | who wants which multicast group |
//! | `guard` | what a guest may claim in ARP, neighbour discovery, DHCP and as its IP source |
//! | `sources` | the IP sources that a guest may use |
//! | `addresses` | which port an IP address belongs to |
//! | `offence` | the first frame of each kind that a guest forged |
//! | `rules` | what may pass a port: a firewall |
//! | `ports`, `verdict` | sets of ports; where a frame goes |
//! | `drops` | why a frame was dropped, counted |
//! | `ethernet` | addresses in words |
//!
//! A port is a *NIC port*, behind which there are stations to be learned, or a *guest port*, whose
//! MACs are bound by configuration and enforced. Time is passed in, and every table is bounded.

mod addresses;
mod drops;
mod ethernet;
mod forward;
mod guard;
mod members;
mod membership;
mod offence;
mod port;
mod ports;
mod rules;
mod sources;
mod table;
mod verdict;

pub use drops::{DropReason, Drops};
pub use guard::wanted;
pub use members::Bridge;
pub use offence::{Claim, Offence};
pub use port::{AddError, BridgeSettings, Claims, Kind, Port, Rate};
pub use ports::{MAX_PORTS, PortSet};
pub use rules::{Count, Prefix, Rule, Way};
pub use table::Station;
pub use verdict::Verdict;
