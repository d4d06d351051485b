//! `driver-lab`: the driver domain, with the grant mechanisms that only comparisons use.
//! `grantwayd-lab` starts it instead of `driver`.
//!
//! | mechanism | reading (from the guest) | writing (to the guest) |
//! |---|---|---|
//! | [`copy`] | one hypercall copies the batch into the driver's pages | one hypercall copies the batch into the guest's pages |
//! | `map` ([`mapping`]) | one hypercall maps the pages of the batch, another one unmaps them | the same, with copies in between |
//! | `persistent` ([`mapping`]) | pages are mapped at the first use and remain mapped until the connection ends | the same |
//! | [`flip`] | as `map` | one hypercall exchanges pages of the driver, which contain the batch, for pages of the guest; a NIC receives into these pages ([`exchange`]) |
//! | `flip-copy` | as `map` | the same, but each frame is copied into its page |
//!
//! [`memory`] selects the mechanism. For counted grants, it uses the mechanism of the crate
//! `driver`.

mod copy;
mod exchange;
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
