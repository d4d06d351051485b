//! Plugin of netavark (API 1.0.0), for podman 5 and later, which does not support CNI. The call is
//! in the arguments, its data on standard input. The plugin attaches containers as for CNI; podman
//! assigns the addresses. CNI's `portmap` publishes ports. This plugin calls it as a runtime would
//! call a plugin that is chained after this one.

mod create;
mod podman;
mod setup;

use crate::error::{CniError, ErrorCode};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Executes the call in the arguments with the text `input`; returns the answer, and whether the
/// call succeeded.
pub(crate) fn run(args: &[String], env: &BTreeMap<String, String>, input: &[u8]) -> (String, bool) {
    match answer(args, env, input) {
        Ok(None) => (String::new(), true),
        Ok(Some(answer)) => (format!("{answer}\n"), true),
        Err(failure) => (
            format!("{}\n", json!({ "error": failure.to_string() })),
            false,
        ),
    }
}

fn answer(
    args: &[String],
    env: &BTreeMap<String, String>,
    input: &[u8],
) -> Result<Option<Value>, CniError> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["info"] => Ok(Some(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "api_version": "1.0.0",
        }))),
        ["create"] => create::create(read(input)?).map(Some),
        ["setup", netns] => setup::setup(netns, env, &read(input)?).map(Some),
        ["teardown", netns] => setup::teardown(netns, env, &read(input)?).map(|()| None),
        _ => {
            let msg = "netavark's calls are `info`, `create`, `setup NETNS`, `teardown NETNS`; \
                       CNI's have no argument";
            Err(CniError::new(ErrorCode::Environment, msg))
        }
    }
}

/// Parses everything that `setup` parses, without attaching anything.
#[cfg(feature = "testing")]
pub(crate) fn read_setup(input: &[u8]) {
    if let Ok(input) = read(input)
        && let Ok(container) = crate::network::decoded::<podman::PodmanContainer>(&input)
    {
        // A rejection is also a valid answer.
        let _refused = container.assigned_addresses().err();
        let _refused = setup::request("ADD", "/run/netns/c", &BTreeMap::new(), &container).err();
    }
}

fn read(input: &[u8]) -> Result<Value, CniError> {
    serde_json::from_slice(input).map_err(|error| {
        CniError::new(
            ErrorCode::Decode,
            "standard input is not a network of podman",
        )
        .with_details(error)
    })
}
