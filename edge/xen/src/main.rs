//! `grantway-xen`: the driver domain on Xen. Started by `grantway xen`, or by hand.

fn main() -> std::process::ExitCode {
    xen::program::main()
}
