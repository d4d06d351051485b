//! Figures: how they are measured, estimated, compared and shown. Experiments, the profiler and
//! the command-line tool share it, so that a median, an interval or a table means the same in each.
//!
//! | module | what it is |
//! |---|---|
//! | [`measure`] | exact CPU time of processes, what the hypervisor below took, cores |
//! | [`stats`] | medians, intervals, verdicts |
//! | [`metric`] | names of metrics: unit, better side |
//! | [`report`] | a figure; JSON lines, and cells of tables |
//! | [`table`] | tables for people |
//! | [`mod@csv`] | figures as comma-separated values |
//! | [`plot`] | figures as SVG |
//! | [`provenance`] | where figures come from |
//! | [`clean`] | texts of others, before they are shown |
//! | [`mod@file`] | files that replace what was there |
//! | [`failure`] | how a command fails, with which exit status |
//! | [`interrupt`] | Ctrl-C ends a run by unwinding it |
//! | [`helper`] | helper processes, asked and answering by lines |
//! | [`sampler`] | messages of one helper, the profiler's sampler |
//! | [`socket`] | the TCP sockets of loads |
#![forbid(unsafe_code)]

pub mod again;
pub mod clean;
pub mod csv;
pub mod failure;
pub mod file;
pub mod helper;
pub mod interrupt;
pub mod measure;
pub mod metric;
pub mod plot;
pub mod provenance;
pub mod report;
pub mod sampler;
pub mod socket;
pub mod stats;
pub mod table;

pub use failure::{Failure, exit_code};
