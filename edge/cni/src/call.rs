//! The command of a call and its arguments, from environment variables.

use crate::error::{CniError, ErrorCode};
use std::collections::BTreeMap;

/// Maximum length of an interface's name in bytes, set by the kernel.
const IFNAME_MAX: usize = 15;

/// Commands of CNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CniCommand {
    /// Attach an interface to a container.
    Add,
    /// Check that the attachment is unchanged.
    Check,
    /// Remove the attachment.
    Del,
    /// Remove attachments of containers that no longer exist.
    Gc,
    /// Check that an ADD would succeed now.
    Status,
    /// List the supported versions.
    CniVersion,
}

/// The variables of a call.
#[derive(Clone, Debug)]
pub(crate) struct CniCall {
    pub(crate) command: CniCommand,
    /// The container's id.
    pub(crate) container: String,
    /// The file of its network namespace; may be empty for DEL.
    pub(crate) netns: String,
    /// Name of the interface in the container.
    pub(crate) ifname: String,
    /// All variables, for the `ipam` plugin.
    pub(crate) env: BTreeMap<String, String>,
}

impl CniCall {
    /// Parses the environment variables.
    pub(crate) fn of(env: BTreeMap<String, String>) -> Result<Self, CniError> {
        let text = |key: &str| env.get(key).cloned().unwrap_or_default();
        let call = Self {
            command: command(&text("CNI_COMMAND"))?,
            container: text("CNI_CONTAINERID"),
            netns: text("CNI_NETNS"),
            ifname: text("CNI_IFNAME"),
            env,
        };
        let (of_one, in_netns) = match call.command {
            CniCommand::Add | CniCommand::Check => (true, true),
            CniCommand::Del => (true, false),
            CniCommand::Gc | CniCommand::Status | CniCommand::CniVersion => (false, false),
        };
        if of_one && !is_id(&call.container) {
            return Err(wrong(
                "CNI_CONTAINERID",
                &call.container,
                "a letter or digit, then letters, digits, `_`, `.` and `-`",
            ));
        }
        if of_one && !is_ifname(&call.ifname) {
            let right = "1 to 15 characters without blanks, `/` and `:`";
            return Err(wrong("CNI_IFNAME", &call.ifname, right));
        }
        if in_netns && !call.netns.starts_with('/') {
            let right = "the absolute path of a network namespace";
            return Err(wrong("CNI_NETNS", &call.netns, right));
        }
        Ok(call)
    }

    /// Returns an argument of CNI_ARGS by its name. Unknown arguments are ignored.
    pub(crate) fn arg(&self, name: &str) -> Option<&str> {
        let args = self.env.get("CNI_ARGS")?.split(';');
        let mut pairs = args.filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(key, value)| *key == name && !value.is_empty());
        found.map(|(_, value)| value)
    }
}

fn command(text: &str) -> Result<CniCommand, CniError> {
    Ok(match text {
        "ADD" => CniCommand::Add,
        "CHECK" => CniCommand::Check,
        "DEL" => CniCommand::Del,
        "GC" => CniCommand::Gc,
        "STATUS" => CniCommand::Status,
        "VERSION" => CniCommand::CniVersion,
        "" => {
            let why = "CNI_COMMAND is not set: container runtimes call this plugin";
            return Err(CniError::new(ErrorCode::Environment, why));
        }
        other => {
            let right = "ADD, CHECK, DEL, GC, STATUS or VERSION";
            return Err(wrong("CNI_COMMAND", other, right));
        }
    })
}

/// Returns whether a text is a valid container id or network name of CNI.
pub(crate) fn is_id(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-');
    text.bytes().all(plain) && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn is_ifname(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_graphic() && !matches!(c, b'/' | b':' | b'%');
    let is_long = (1..=IFNAME_MAX).contains(&text.len());
    is_long && text.bytes().all(plain) && text != "." && text != ".."
}

fn wrong(key: &str, value: &str, right: &str) -> CniError {
    let msg = format!("{key} is \"{}\"; it must be {right}", value.escape_debug());
    CniError::new(ErrorCode::Environment, msg)
}
