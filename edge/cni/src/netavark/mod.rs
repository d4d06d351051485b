//! The same for podman since version 5, which has no CNI: a plugin of netavark's, API 1.0.0. The
//! call is in the arguments, what it is about on standard input. A container is attached as by CNI;
//! podman gives out the addresses, and published ports are for CNI's `portmap`, which is called as
//! behind this plugin in a list.

mod create;
mod ports;
mod setup;
mod told;

use crate::failure::{Code, Failure};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Does what the arguments and the text `input` say: the answer, and whether it was done.
pub(crate) fn run(args: &[String], env: &BTreeMap<String, String>, input: &[u8]) -> (String, bool) {
    match answer(args, env, input) {
        Ok(None) => (String::new(), true),
        Ok(Some(answer)) => (format!("{answer}\n"), true),
        Err(failure) => (format!("{}\n", json!({ "error": said(&failure) })), false),
    }
}

fn answer(
    args: &[String],
    env: &BTreeMap<String, String>,
    input: &[u8],
) -> Result<Option<Value>, Failure> {
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
            Err(Failure::new(Code::Environment, msg))
        }
    }
}

/// Reads everything that `setup` reads, and attaches nothing.
#[cfg(feature = "testing")]
pub(crate) fn read_setup(input: &[u8]) {
    if let Ok(told) = read(input)
        && let Ok(container) = crate::network::decoded::<told::Container>(&told)
    {
        // Refusals are answers.
        let _refused = container.given().err();
        let _refused = setup::request("ADD", "/run/netns/c", &BTreeMap::new(), &container).err();
    }
}

fn read(input: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(input).map_err(|error| {
        Failure::new(Code::Decode, "standard input is no network of podman's").because(error)
    })
}

fn said(failure: &Failure) -> String {
    match failure.details.as_str() {
        "" => failure.msg.clone(),
        details => format!("{}: {details}", failure.msg),
    }
}
