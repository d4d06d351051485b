//! Plans: experiments as data. This module parses and validates plans, but runs nothing.
//!
//! | module | contents |
//! |---|---|
//! | `file` | a plan, as in its file |
//! | `column` | columns: paths between wire and guest |
//! | [`topology`] | machines: mechanisms, guests, streams, place |
//! | [`wire`], [`lro`] | the wire; the LRO settings |
//! | [`workload`] | workload, direction, and whether cores may halt |
//! | [`rounds`] | number and length of rounds |
//! | [`frames`] | columns of raw frames, and of files |
//! | [`threshold`] | ratios of columns, and values that figures must reach |
//! | [`config`] | configuration names of figures: a column and its keys |
//! | [`adjustment`] | command-line options that change a plan |
//! | [`parse`], [`check`] | parsing and validation |

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
pub use config::ColumnConfig;
pub use file::{IdleVms, Plan, Up};
pub use frames::{FileColumn, FrameRule, Frames, Peer, PeerKind};
pub use lro::{LroColumn, LroRules};
pub use rounds::{Rounds, Times};
pub use threshold::{Ratio, Threshold, names_column};
pub use topology::{Mechanisms, Place, Topology};
pub use wire::{PollMode, WireFaults, WireNic, WireOffload, WireSpeed};
pub use workload::{IdleState, PayloadDirection, ReceiveWorkload, Web, Workload};
