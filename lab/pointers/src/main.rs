//! Guest and driver domain as threads of one process, to measure what isolation costs. Started by
//! `grantway exp`.

mod grants;
mod platform;
mod run;

fn main() -> std::process::ExitCode {
    run::main()
}
