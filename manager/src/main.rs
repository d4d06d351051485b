//! The program `grantway-manager`: see the crate `manager`.

use std::process::ExitCode;

fn main() -> ExitCode {
    manager::main()
}
