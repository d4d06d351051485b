//! What is called, of what: the variables of the environment.

use crate::failure::{Code, Failure};
use std::collections::BTreeMap;

/// The kernel's limit of an interface's name, bytes.
const IFNAME_MAX: usize = 15;

/// What a plugin can be called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Give a container an interface.
    Add,
    /// Is it still as it was left?
    Check,
    /// Take it away.
    Del,
    /// Take away what no container has any more.
    Gc,
    /// Could one be added now?
    Status,
    /// Which versions are spoken?
    Version,
}

/// The variables of a call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) command: Command,
    /// The container's id.
    pub(crate) container: String,
    /// The file of its network namespace. A DEL may have none.
    pub(crate) netns: String,
    /// Name of the interface in there.
    pub(crate) ifname: String,
    /// All variables, for the program that gives addresses.
    pub(crate) env: BTreeMap<String, String>,
}

impl Call {
    /// Reads the variables of the environment.
    pub(crate) fn of(env: BTreeMap<String, String>) -> Result<Self, Failure> {
        let text = |key: &str| env.get(key).cloned().unwrap_or_default();
        let call = Self {
            command: command(&text("CNI_COMMAND"))?,
            container: text("CNI_CONTAINERID"),
            netns: text("CNI_NETNS"),
            ifname: text("CNI_IFNAME"),
            env,
        };
        let (of_one, in_netns) = match call.command {
            Command::Add | Command::Check => (true, true),
            Command::Del => (true, false),
            Command::Gc | Command::Status | Command::Version => (false, false),
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

    /// An argument of CNI_ARGS, by its name. All others may be whatever they want.
    pub(crate) fn arg(&self, name: &str) -> Option<&str> {
        let args = self.env.get("CNI_ARGS")?.split(';');
        let mut pairs = args.filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(key, value)| *key == name && !value.is_empty());
        found.map(|(_, value)| value)
    }
}

fn command(text: &str) -> Result<Command, Failure> {
    Ok(match text {
        "ADD" => Command::Add,
        "CHECK" => Command::Check,
        "DEL" => Command::Del,
        "GC" => Command::Gc,
        "STATUS" => Command::Status,
        "VERSION" => Command::Version,
        "" => {
            let why = "CNI_COMMAND is not set: this is a plugin that container runtimes call";
            return Err(Failure::new(Code::Environment, why));
        }
        other => {
            let right = "ADD, CHECK, DEL, GC, STATUS or VERSION";
            return Err(wrong("CNI_COMMAND", other, right));
        }
    })
}

/// Whether a text is what CNI says that ids of containers and names of networks are.
pub(crate) fn is_id(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-');
    text.bytes().all(plain) && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn is_ifname(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_graphic() && !matches!(c, b'/' | b':' | b'%');
    let is_long = (1..=IFNAME_MAX).contains(&text.len());
    is_long && text.bytes().all(plain) && text != "." && text != ".."
}

fn wrong(key: &str, value: &str, right: &str) -> Failure {
    let msg = format!(
        "{key} is \"{}\"; it has to be {right}",
        value.escape_debug()
    );
    Failure::new(Code::Environment, msg)
}
