//! The program `grantway` as a person or a script meets it.

mod capture;
mod commands;
mod dashboard;
mod exp;
mod left;
mod machine;
mod limits;
mod metrics;
mod pcapng;
mod place;
mod prof;
mod service;
mod terminal;
mod top;
mod workers;
