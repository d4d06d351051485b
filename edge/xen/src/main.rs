//! `grantway-xen`: the driver domain on Xen. `grantway xen` starts it; it can also be started
//! directly.

fn main() -> std::process::ExitCode {
    xen::program::main()
}
