//! The driver domain. It owns the NICs, and switches packets between them and the guests.
//! `grantwayd` starts it.

#[global_allocator]
static HEAP: shmem::arena::Arena<{ 64 << 20 }> = shmem::arena::Arena::new();

fn main() -> std::process::ExitCode {
    runtime::start::main(driver::run)
}
