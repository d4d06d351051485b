//! The hidden subcommand `internal`: the helper processes of this crate, which `grantway-lab` runs.
//! Their arguments are JSON and not stable.

use crate::soak::{attaches, guests, probe, vms};
use crate::{forwarder, load, ns, soak};
use figures::Failure;
use figures::helper::{parse, report};

/// Runs a helper: `internal <load|ns|forward|probe|soak|attaches|guests|vms> [JSON]`. Returns only
/// if the helper could not start.
///
/// # Errors
/// Returns an error if the arguments are invalid or the helper fails.
pub fn main(args: &[String]) -> anyhow::Result<()> {
    report(dispatch(args))
}

fn dispatch(args: &[String]) -> anyhow::Result<()> {
    let spec = args.get(1).map_or("null", String::as_str);
    match args.first().map(String::as_str) {
        Some("load") => load::main(&parse(spec)?),
        Some("ns") => ns::main(),
        Some("forward") => forwarder::main(&parse(spec)?),
        Some("probe") => probe::main(&parse(spec)?),
        Some("soak") => soak::main(&parse(spec)?),
        Some("vms") => vms::main(&parse(spec)?),
        Some("guests") => guests::main(&parse(spec)?),
        Some("attaches") => attaches::main(&parse(spec)?),
        _ => Err(Failure::Usage("internal: no such helper".to_owned()).into()),
    }
}
