//! The program `grantway` as a person or a script meets it.

mod capture;
mod clients;
mod commands;
mod dashboard;
mod exp;
mod left;
mod limits;
mod machine;
mod metrics;
mod pcapng;
mod place;
mod prof;
mod service;
mod terminal;
mod top;
mod workers;
