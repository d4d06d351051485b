//! `driver-lab`: the driver domain, with the grant mechanisms that only comparisons use.
//! `grantwayd-lab` starts it instead of `driver`.
//!
//! | mechanism | reading (from the guest) | writing (to the guest) |
//! |---|---|---|
//! | [`copy`] | one hypercall copies the batch into the driver's pages | one hypercall copies the batch into the guest's pages |
//! | `map` ([`mapping`]) | one hypercall maps the batch's pages, one unmaps them | the same, with copies in between |
//! | `persistent` ([`mapping`]) | pages are mapped at first use and stay mapped for the connection | the same |
//! | [`flip`] | as `map` | one hypercall exchanges the driver's pages that hold the batch for the guest's |
//!
//! [`memory`] selects the mechanism; guests with counted grants use the driver's own.

mod copy;
mod flip;
mod mapping;
mod memory;
#[cfg(test)]
mod tests;
mod window;

#[global_allocator]
static HEAP: shmem::arena::Arena<{ 64 << 20 }> = shmem::arena::Arena::new();

fn main() -> std::process::ExitCode {
    runtime::start::main(|started| driver::run_with(started, memory::LabGuests::boxed))
}
