//! The bridge: forwards or drops frames. Its clauses are numbered in `specs/bridge.md` (BR-1 …).
//!
//! | module | job |
//! |---|---|
//! | `port` | configuration: limits, ports |
//! | `members` | the bridge and its ports |
//! | `forward` | forwarding of one frame or a batch |
//! | `table` | stations and their ports: bound permanently, or learned with an ageing time |
//! | `membership` | multicast group messages |
//! | `guard` | identities that a guest may claim in ARP, neighbour discovery, DHCP and as IP source
//! |
//! | `sources` | permitted IP sources of a guest |
//! | `addresses` | ports by IP address |
//! | `offence` | the first frame of each kind that a guest forged |
//! | `routed` | the fast path for small frames |
//! | `rule`, `rules` | a firewall rule; the rules of a port |
//! | `compiled_rule`, `frame_properties`, `prefix` | comparison of a frame with a rule |
//! | `ports`, `verdict` | sets of ports; forwarding decisions |
//! | `drops` | counted drop reasons |
//! | `ethernet` | addresses in words |
//!
//! A port is a *NIC port*, behind which stations are learned, or a *guest port*, whose MACs are
//! bound by configuration and enforced. The caller passes the time, and every table is bounded.

mod addresses;
mod compiled_rule;
mod drops;
mod ethernet;
mod forward;
mod frame_properties;
mod guard;
mod members;
mod membership;
mod offence;
mod port;
mod ports;
mod prefix;
mod routed;
mod rule;
mod rules;
mod sources;
mod table;
mod verdict;

pub use drops::{DropReason, Drops};
pub use guard::needed_header_bytes;
pub use members::Bridge;
pub use offence::{ForgedIdentity, Offence};
pub use port::{AddError, BridgeSettings, PortConfig, PortKind, PortPermissions, Rate};
pub use ports::{MAX_PORTS, PortSet};
pub use prefix::Prefix;
pub use rule::Rule;
pub use rules::{Direction, RuleCount};
pub use table::StationEntry;
pub use verdict::Verdict;
