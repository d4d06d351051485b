//! `grantway-netd`: opens and configures devices, for the core, which starts it.
//!
//! Its standard input is the link to the core. It may change the host's network, and has no frame
//! of any domain: what a device consists of goes to the core, which keeps it, hands domains their
//! descriptors, and gives all of it to the next netd when this one has died. Frames flow meanwhile:
//! they never pass here. Of a TAP a descriptor stays here, the last one that is closed, for the
//! kernel takes its time over that.
//!
//! | module | what it is |
//! |---|---|
//! | `serve` | tasks of the core: open, take up, bind, close |
//! | `told` | what domains tell their devices, on a thread of its own |
//! | `unit` | one device or socket |
//! | `places` | which namespaces they were made in, and whether these are there |

mod places;
mod serve;
mod told;
mod unit;

use confine::{CapabilitySet, NETD, Rights, confine};
use std::os::fd::AsFd;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("grantway-netd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let stdin = std::io::stdin();
    let link = stdin.as_fd().try_clone_to_owned();
    let link = link.map_err(|e| format!("the link to the core: {e}"))?;
    let rights = Rights {
        name: "netd",
        user: None,
        keep: CapabilitySet::NET_ADMIN
            | CapabilitySet::NET_RAW
            | CapabilitySet::BPF
            // To enter namespaces of others, and to find them by a process.
            | CapabilitySet::SYS_ADMIN
            | CapabilitySet::SYS_PTRACE,
        ends_with_parent: true,
        calls: NETD,
    };
    let missing = confine(&rights).map_err(|e| format!("giving up what it does not need: {e}"))?;
    serve::run(link.into(), missing)
}
