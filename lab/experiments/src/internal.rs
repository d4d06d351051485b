//! The hidden subcommand `internal`: the helper processes of this crate, all served by the one
//! program `grantway`. Their arguments are JSON and may change at any time.

use crate::{child, forwarder, load, ns, spin};
use figures::Failure;
use serde::de::DeserializeOwned;

/// Runs a helper: `internal <load|ns|forward|spin> [JSON]`. Returns only if it could not start.
///
/// # Errors
/// If the arguments are wrong or the helper cannot do its work.
pub fn main(args: &[String]) -> anyhow::Result<()> {
    told(dispatch(args))
}

/// Says a helper's error also on standard output, for the process that waits there.
///
/// # Errors
/// The same one.
pub fn told(done: anyhow::Result<()>) -> anyhow::Result<()> {
    if let Err(error) = &done {
        let exit = figures::exit_code(error);
        child::say(&serde_json::json!({ "error": format!("{error:#}"), "exit": exit }));
    }
    done
}

fn dispatch(args: &[String]) -> anyhow::Result<()> {
    let spec = args.get(1).map_or("null", String::as_str);
    match args.first().map(String::as_str) {
        Some("load") => load::main(&parse(spec)?),
        Some("ns") => ns::main(),
        Some("forward") => forwarder::main(&parse(spec)?),
        Some("spin") => spin::main(&parse(spec)?),
        _ => Err(Failure::Usage("internal: no such helper".to_owned()).into()),
    }
}

/// A helper's argument.
///
/// # Errors
/// [`Failure::Usage`] if it is not what the helper expects.
pub fn parse<T: DeserializeOwned>(spec: &str) -> anyhow::Result<T> {
    serde_json::from_str(spec).map_err(|error| Failure::Usage(error.to_string()).into())
}
