//! Real traffic across real machines.

mod machine;
mod pairs;
mod programs;
