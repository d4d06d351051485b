//! `grantwayd-lab`: the core, with additional grant mechanisms that only comparisons use. It starts
//! `driver-lab`, which uses them, instead of `driver`.

use std::process::ExitCode;

fn main() -> ExitCode {
    grantwayd::run("driver-lab", Some(baselines::mechanisms))
}
