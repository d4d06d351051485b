//! Large receive offload: merges consecutive TCP segments of a flow into one packet.
//!
//! | module | job |
//! |---|---|
//! | [`settings`] | settings |
//! | `engine` | the engine, and the path of a predicted packet |
//! | `slow_path` | all other packets: continues or begins aggregates |
//! | `prediction` | header prediction: recognizes the next packet of a stream by one comparison |
//! | [`rules`] | merge rules: the table, and its compiled form |
//! | `eligibility`, `verify` | requirements on a single packet |
//! | `layout` | header positions, and flows |
//! | `aggregate` | an aggregate while it grows |
//! | `policy`, `adaptive` | when to flush aggregates; when waiting pays off |
//! | `table`, `lists`, `timer_wheel` | aggregates by flow, by age, by due time |
//! | [`counters`], [`latency`], [`reason`] | counts, waiting times, flush reasons |
//!
//! The engine is pure: it takes frames and the time, and returns frames. It moves no payload. An
//! aggregate is an ordinary [`nic::Frame`] whose pieces are all its buffers, with its header
//! rewritten, its checksum blank, and [`nic::Gso`]; recycling it frees all its buffers. Work per
//! packet is bounded for all inputs. The clauses LR-… are in `specs/lro.md`.

pub mod counters;
pub mod latency;
pub mod reason;
pub mod rules;
pub mod settings;

mod adaptive;
mod aggregate;
mod eligibility;
mod engine;
mod layout;
mod lists;
mod policy;
mod prediction;
mod slow_path;
mod table;
mod timer_wheel;
mod verify;

pub use counters::LroCounters;
pub use engine::Lro;
pub use latency::HoldLatency;
pub use reason::Reason;
pub use settings::{AggregateForm, Flush, MergeRules, Psh, Settings};
