//! `grantwayd-lab`: the core, with additional grant mechanisms that only comparisons use.

use std::process::ExitCode;

fn main() -> ExitCode {
    grantwayd::run(Some(baselines::mechanisms))
}
