//! Experiments: plans, loads, baselines, studies, and the demonstration.
//!
//! The crate uses no Rust type of the packet path. It controls processes by JSON: loads in network
//! namespaces ([`load`]), the baselines' forwarder ([`forwarder`]), and a running machine through
//! its command-line client. `README.md` beside the sources describes measurements and methods.
//!
//! A figure is computed in these steps. A plan ([`plan`]) names columns. Each column becomes a lane
//! ([`lane`]), a path between a wire and a guest with its loads. A study ([`studies`]) opens
//! windows on the lanes in turn and reads exact CPU times around each ([`figures::measure`]). The
//! samples are stored by configuration and round ([`runner`]). Medians, intervals and verdicts
//! ([`figures::stats`]) become figures ([`figures::report`]). [`exp`] has the table of all studies.
#![forbid(unsafe_code)]

pub mod papers;
pub mod plan;

pub mod forwarder;
pub mod idle_cores;
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

mod many_guests;
pub mod soak;
pub mod studies;

pub mod demo;
pub mod exp;
