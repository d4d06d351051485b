//! The device domain: the device of a NIC, in software. `grantwayd` starts it.

#[global_allocator]
static HEAP: shmem::arena::Arena<{ 64 << 20 }> = shmem::arena::Arena::new();

fn main() -> std::process::ExitCode {
    runtime::start::main(device::run)
}
