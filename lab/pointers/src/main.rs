//! Guest and driver domain as threads of one process, to measure the cost of isolation. `grantway
//! exp` starts it.

mod grants;
mod platform;
mod run;

fn main() -> std::process::ExitCode {
    run::main()
}
