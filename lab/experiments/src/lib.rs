//! Experiments: plans, loads, baselines, statistics and reports, and the demonstration.
//!
//! The crate knows no Rust type of the packet path. It speaks to processes, in JSON: to loads that
//! live in network namespaces ([`load`]), to the baselines' own forwarder ([`forwarder`]), and to
//! a running machine through its command-line client. `README.md` beside the sources says what is
//! measured and how.
//!
//! The way of a figure: a plan ([`plan`]) names columns; each column becomes a lane ([`lane`]), a
//! path between a wire and a guest with its loads; the runner opens windows on the lanes in turn
//! ([`runner`]) and reads exact CPU times around each ([`figures::measure`]); medians, intervals and
//! verdicts ([`figures::stats`]) become figures ([`figures::report`]).
#![forbid(unsafe_code)]

pub mod forwarder;
pub mod frontier;
pub mod internal;
pub mod kernel;
pub mod lane;
pub mod load;
pub mod ns;
pub mod peers;
pub mod plan;
pub mod prototype;
pub mod runner;
pub mod spin;
pub mod tables;
pub mod thesis;

pub mod base;
pub mod demo;
pub mod exp;
pub mod overhead;
pub mod receive_buffer;
pub mod restart;
