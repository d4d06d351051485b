//! The core; see the library of this crate.

fn main() -> std::process::ExitCode {
    grantwayd::run("driver", None)
}
