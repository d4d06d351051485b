//! `grantwayd-lab`: the core with additional grant mechanisms that only comparisons use. Instead of
//! `driver`, it starts `driver-lab`, which uses these mechanisms.

use std::process::ExitCode;

fn main() -> ExitCode {
    grantwayd::run("driver-lab", Some(baselines::mechanisms))
}
