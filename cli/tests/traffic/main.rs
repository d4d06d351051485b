//! Real traffic across real machines.

mod lro;
mod machine;
mod pairs;
mod programs;
mod queues;
mod xdp;
