//! Guest and driver domain as threads of one process, to measure what isolation costs. Started by
//! `grantway exp`.

fn main() -> std::process::ExitCode {
    domain::pointers::main()
}
