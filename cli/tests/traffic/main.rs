//! Real traffic across real machines.

mod forged;
mod lro;
mod machine;
mod pairs;
mod programs;
mod queues;
mod xdp;
