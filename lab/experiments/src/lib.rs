//! Experiments: plans, loads, baselines, studies, and the demonstration.
//!
//! The crate knows no Rust type of the packet path. It speaks to processes, in JSON: to loads that
//! live in network namespaces ([`load`]), to the baselines' own forwarder ([`forwarder`]), and to
//! a running machine through its command-line client. `README.md` beside the sources says what is
//! measured and how.
//!
//! The way of a figure: a plan ([`plan`]) names columns; each column becomes a lane ([`lane`]), a
//! path between a wire and a guest with its loads; a study ([`studies`]) opens windows on the lanes
//! in turn and reads exact CPU times around each ([`figures::measure`]); what it saw is kept by
//! configuration and round ([`runner`]); medians, intervals and verdicts ([`figures::stats`])
//! become figures ([`figures::report`]). [`exp`] has the table of all studies.
#![forbid(unsafe_code)]

pub mod papers;
pub mod plan;

pub mod awake;
pub mod forwarder;
pub mod internal;
pub mod kernel;
pub mod load;
pub mod ns;

pub mod html;
pub mod lane;
pub mod peers;
pub mod progress;
pub mod runner;
pub mod web;

mod crowd;
pub mod soak;
pub mod studies;

pub mod demo;
pub mod exp;
