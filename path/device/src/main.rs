//! The device of a NIC, which stands where hardware stands. `grantwayd` starts it.

#[global_allocator]
static HEAP: shmem::arena::Arena<{ 64 << 20 }> = shmem::arena::Arena::new();

fn main() -> std::process::ExitCode {
    runtime::start::main(device::run)
}
