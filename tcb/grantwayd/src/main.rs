//! See the library of this name.

fn main() -> std::process::ExitCode {
    grantwayd::run(None)
}
