//! The program of every domain in a run. The attacking domains attack; all others behave normally.

mod common;
mod driver_side;
mod guest_side;
mod queue_side;

use runtime::start::main as start;
use std::process::ExitCode;

#[global_allocator]
static HEAP: shmem::arena::Arena<{ 64 << 20 }> = shmem::arena::Arena::new();

/// Name of the attacking guest. The kind is part of the name, because the filter matches only
/// names.
const GUEST: &str = "attacker-guest";
const DRIVER: &str = "attacker-driver";
const QUEUE: &str = "attacker-queue";

fn main() -> ExitCode {
    let name = std::env::args().next().unwrap_or_default();
    match name.as_str() {
        GUEST => start(guest_side::attack),
        DRIVER => start(driver_side::attack),
        QUEUE => start(queue_side::attack),
        name if name.ends_with("driver") => start(driver::run),
        _ => start(guest::run),
    }
}
