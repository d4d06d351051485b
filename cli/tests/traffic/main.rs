//! Real traffic across real machines.

mod attach;
mod attaches;
mod crowd;
mod dedicated;
mod firewall;
mod forged;
mod kills;
mod limits;
mod lro;
mod machine;
mod newcomers;
mod nics;
mod pages;
mod pairs;
mod persistent;
mod processes;
mod programs;
mod queues;
mod reload;
mod restart;
mod sendfile;
mod soak;
mod upgrade;
mod uplink;
mod workers;
mod xdp;
