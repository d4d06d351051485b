//! Plans: what an experiment measures, as data. They are parsed and checked here; nothing here
//! runs.
//!
//! | module | what it is |
//! |---|---|
//! | `file` | a plan: what its file holds |
//! | `column` | what is compared: a path between wire and guest |
//! | [`topology`] | what a machine is: mechanisms, guests, streams, place |
//! | [`wire`], [`lro`] | the wire; LRO's switches |
//! | [`workload`] | what runs, which way, and whether cores may halt |
//! | [`rounds`] | how often and how long |
//! | [`frames`] | columns of raw frames, and of files |
//! | [`threshold`] | divisions of columns, and what figures have to reach |
//! | [`config`] | a column and its keys, the name of a figure |
//! | [`adjustment`] | how a command line changes a plan |
//! | [`parse`], [`check`] | from text to a plan; what is wrong with one |

pub mod adjustment;
pub mod check;
pub mod column;
pub mod config;
pub mod file;
pub mod frames;
pub mod lro;
pub mod parse;
pub mod rounds;
pub mod threshold;
pub mod topology;
pub mod wire;
pub mod workload;

pub use adjustment::Adjustment;
pub use column::{Column, Gro, PathKind};
pub use config::Config;
pub use file::{Plan, Up};
pub use frames::{FileColumn, Frames, Peer, PeerKind};
pub use lro::{Lro, LroRules};
pub use rounds::{Rounds, Times};
pub use threshold::{Ratio, Threshold, names_column};
pub use topology::{Mechanisms, Place, Topology};
pub use wire::{Faults, Moderation, Wire, WireNic};
pub use workload::{Direction, Receive, Wake, Web, Workload};
