//! Executes a call of CNI, from its input to its output.

use crate::call::{CniCall, CniCommand};
use crate::commands::{add, check, del, gc, status};
use crate::error::{CniError, ErrorCode};
use crate::request::PluginRequest;
use crate::version::CniVersion;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Executes the call that the variables `env` describe, with the configuration `conf`. Returns the
/// text of the answer, and whether the call succeeded.
pub(crate) fn run(env: BTreeMap<String, String>, conf: &[u8]) -> (String, bool) {
    let conf = serde_json::from_slice(conf).map_err(|error| {
        let msg = "standard input is not a network's configuration";
        CniError::new(ErrorCode::Decode, msg).with_details(error)
    });
    let asked = conf.as_ref().ok().and_then(asked_version);
    match answer(env, conf, asked) {
        Ok(None) => (String::new(), true),
        Ok(Some(answer)) => (format!("{answer}\n"), true),
        Err(failure) => (failure.to_json(asked.unwrap_or(CniVersion::NEWEST)), false),
    }
}

fn asked_version(conf: &Value) -> Option<CniVersion> {
    CniVersion::of(conf.get("cniVersion")?.as_str()?)
}

fn answer(
    env: BTreeMap<String, String>,
    conf: Result<Value, CniError>,
    asked: Option<CniVersion>,
) -> Result<Option<Value>, CniError> {
    let call = CniCall::of(env)?;
    let command = call.command;
    if command == CniCommand::CniVersion {
        return Ok(Some(json!({
            "cniVersion": asked.unwrap_or(CniVersion::NEWEST).text(),
            "supportedVersions": CniVersion::ALL.map(CniVersion::text),
        })));
    }
    let request = PluginRequest::new(call, conf?)?;
    match command {
        CniCommand::Add => return add::add(&request).map(Some),
        CniCommand::Check => check::check(&request)?,
        CniCommand::Del => del::del(&request)?,
        CniCommand::Gc => gc::gc(&request)?,
        CniCommand::Status | CniCommand::CniVersion => status::status(&request)?,
    }
    Ok(None)
}
