//! Xenoprof for domains that are processes: one statistical profile of all of them.
//!
//! Three instruments, because a machine without a PMU has none that says everything: *exact CPU
//! time* of each domain from the scheduler, the *hop ledger* that each domain keeps itself, and
//! *samples* with call stacks, which say in which function the time went. Totals come from the
//! first, proportions from the last, and the report says how well they agree.
//!
//! | module | what it does |
//! |---|---|
//! | [`event`] | what is sampled, and how good that is here |
//! | [`count`] | exact counts of events by process |
//! | [`sampler`] | rings of the kernel's, and what lies in them |
//! | [`host`] | processes, CPU clocks, which of them are domains |
//! | [`resolve`] | records to threads, stacks and symbols |
//! | [`loss`] | what was expected and what became of it |
//! | [`model`] | a session, and its file |
//! | [`attribute`] | samples to classes, functions and whom they serve, by a rule file |
//! | [`show`] | reports, comparisons, flame graphs, exports |
//! | [`record`] | the command `prof record` |
//! | [`session`] | several domains, each with a profiler of its own |
#![allow(unsafe_code)]

pub mod attribute;
pub mod count;
pub mod event;
pub mod host;
pub mod loss;
pub mod model;
pub mod record;
pub mod resolve;
pub mod sampler;
pub mod session;
pub mod show;

#[cfg(test)]
mod testing;
