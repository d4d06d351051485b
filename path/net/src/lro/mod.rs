//! Large receive offload: consecutive TCP segments of a flow become one packet.
//!
//! | module | job |
//! |---|---|
//! | [`settings`] | what can be chosen |
//! | `engine` | the engine, and the path of a packet that is as predicted |
//! | `slow_path` | any other packet: which aggregate it continues, whether it begins one |
//! | `prediction` | header prediction: recognizes the next packet of a stream by one comparison |
//! | [`rules`] | what may be merged: the table, and its compiled form |
//! | `entry`, `verify` | what a packet must be by itself |
//! | `layout` | where its headers lie, and which flow it is of |
//! | `held` | an aggregate while it grows |
//! | `policy`, `adaptive` | when aggregates go on; when waiting pays |
//! | `table`, `lists`, `wheel` | aggregates by flow, by age, by the time at which they are due |
//! | [`counters`], [`latency`], [`reason`] | what happened, how long it took, why |
//!
//! The engine is pure: frames in, frames out, time passed in. It moves no payload. An aggregate is
//! an ordinary [`nic::Frame`] whose pieces are all the buffers that it consists of, with its header
//! rewritten, its checksum blank, and [`nic::Gso`]; recycling it gives all its buffers back. Work
//! per packet is bounded for all inputs. The clauses LR-… are in `specs/lro.md`.

pub mod counters;
pub mod latency;
pub mod reason;
pub mod rules;
pub mod settings;

mod adaptive;
mod engine;
mod entry;
mod held;
mod layout;
mod lists;
mod policy;
mod prediction;
mod slow_path;
mod table;
mod verify;
mod wheel;

pub use counters::Counters;
pub use engine::Lro;
pub use latency::Latency;
pub use reason::Reason;
pub use settings::{Flush, Form, Psh, Rules, Settings};
