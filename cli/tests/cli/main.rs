//! Tests of the program `grantway` from its users' view.

mod capture;
mod clients;
mod commands;
mod dashboard;
mod device;
mod exp;
mod limits;
mod machine;
mod metrics;
mod pcapng;
mod prof;
mod saved_state;
mod service;
mod terminal;
mod test_dir;
mod top;
mod workers;
