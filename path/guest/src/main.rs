//! A guest domain: netfronts, and an endpoint behind each. `grantwayd` starts it.

#[global_allocator]
static HEAP: shmem::arena::Arena<{ 64 << 20 }> = shmem::arena::Arena::new();

fn main() -> std::process::ExitCode {
    runtime::start::main(guest::run)
}
