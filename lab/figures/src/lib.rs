//! Figures: measurement, estimation, comparison and output. Experiments, the profiler and `cargo
//! xtask compare` share this crate, so that a median, an interval or a table has the same meaning
//! in each. The crate [`tool`] handles exit statuses, Ctrl-C and helper processes.
//!
//! | module | contents |
//! |---|---|
//! | [`measure`] | exact CPU time of processes, waits for a CPU, steal, cores |
//! | [`correction`] | corrections of hop ledgers, and their causes |
//! | [`stats`] | medians, intervals, verdicts |
//! | [`metric`] | names of metrics: unit, better side |
//! | [`report`] | a figure, as a line of JSON and as a table cell |
//! | [`table`] | tables for users |
//! | [`mod@csv`] | figures as comma-separated values |
//! | [`plot`] | figures as SVG |
//! | [`provenance`] | provenance of figures |
//! | [`mod@file`] | atomic replacement of files |
//! | [`sampler`] | messages of the profiler's sampler helper |
//! | [`socket`] | TCP sockets of loads |
#![forbid(unsafe_code)]

pub mod correction;
pub mod csv;
pub mod file;
pub mod measure;
pub mod metric;
pub mod plot;
pub mod provenance;
pub mod repeat;
pub mod report;
pub mod sampler;
pub mod socket;
pub mod stats;
pub mod table;

pub use tool::{Failure, clean, exit_code, helper, interrupt};
