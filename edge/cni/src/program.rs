//! From a call to what is written, and whether it was done.

use crate::call::{Call, Command};
use crate::commands::{add, check, del, gc, status};
use crate::failure::{Code, Failure};
use crate::request::Request;
use crate::version::Version;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Does what the variables `env` and the configuration `conf` say: the text of the answer, and
/// whether it was done.
pub(crate) fn run(env: BTreeMap<String, String>, conf: &[u8]) -> (String, bool) {
    let conf = serde_json::from_slice(conf).map_err(|error| {
        let msg = "standard input is no configuration of a network";
        Failure::new(Code::Decode, msg).because(error)
    });
    let asked = conf.as_ref().ok().and_then(asked_version);
    match answer(env, conf, asked) {
        Ok(None) => (String::new(), true),
        Ok(Some(answer)) => (format!("{answer}\n"), true),
        Err(failure) => (failure.written(asked.unwrap_or(Version::NEWEST)), false),
    }
}

fn asked_version(conf: &Value) -> Option<Version> {
    Version::of(conf.get("cniVersion")?.as_str()?)
}

fn answer(
    env: BTreeMap<String, String>,
    conf: Result<Value, Failure>,
    asked: Option<Version>,
) -> Result<Option<Value>, Failure> {
    let call = Call::of(env)?;
    let command = call.command;
    if command == Command::Version {
        return Ok(Some(json!({
            "cniVersion": asked.unwrap_or(Version::NEWEST).text(),
            "supportedVersions": Version::ALL.map(Version::text),
        })));
    }
    let request = Request::new(call, conf?)?;
    match command {
        Command::Add => return add::add(&request).map(Some),
        Command::Check => check::check(&request)?,
        Command::Del => del::del(&request)?,
        Command::Gc => gc::gc(&request)?,
        Command::Status | Command::Version => status::status(&request)?,
    }
    Ok(None)
}
