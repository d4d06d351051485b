//! Xenoprof for domains that are processes: one statistical profile of all domains.
//!
//! On a machine without a PMU no single instrument suffices, so three are combined: the *exact CPU
//! time* of each domain from the scheduler, the *hop ledger* that each domain keeps, and *samples*
//! with call stacks, which show the functions that used the time. Totals are from the scheduler,
//! proportions from the samples, and the report states how well the instruments agree.
//!
//! | module | contents |
//! |---|---|
//! | [`event`] | events that can be sampled, and their quality on this machine |
//! | [`mod@unit`] | units of events |
//! | [`count`] | exact counts of events by process |
//! | [`sampler`] | the kernel's rings and their records |
//! | [`host`] | processes, CPU clocks, and the domains among the processes |
//! | [`resolve`] | from records to threads, stacks and symbols |
//! | [`loss`] | expected samples and their outcomes |
//! | [`model`] | a session, and its file |
//! | [`attribute`] | samples by class, function and beneficiary, according to a rule file |
//! | [`annotate`] | source lines and instructions of a function |
//! | [`select`] | a part of a session: threads, time |
//! | [`show`] | reports, comparisons, flame graphs, exports |
//! | [`record`] | the command `prof record` |
//! | [`session`] | several domains, each with a separate profiler |
#![allow(unsafe_code)]

pub mod annotate;
pub mod attribute;
pub mod count;
pub mod event;
pub mod host;
pub mod loss;
pub mod model;
pub mod record;
pub mod resolve;
pub mod sampler;
pub mod select;
pub mod session;
pub mod show;
pub mod unit;

#[cfg(test)]
mod testing;
