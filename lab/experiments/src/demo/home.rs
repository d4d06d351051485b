//! Where the demonstration can make its namespaces: here, in a user namespace of its own, or
//! nowhere.

use anyhow::Context as _;
use netdev::netns;
use std::fs::OpenOptions;
use std::process::{Command, ExitStatus};

/// What was found.
pub(super) enum Home {
    /// In this process.
    Here,
    /// It ran in a process of its own, inside a user namespace, and ended so.
    Elsewhere(ExitStatus),
    /// Namespaces or TAPs cannot be had; why.
    NoTap(String),
}

/// Set in the process inside the user namespace.
const INSIDE: &str = "GRANTWAY_DEMO_INSIDE";

/// Finds out; must be called before any thread is started.
pub(super) fn find(sim: bool) -> anyhow::Result<Home> {
    if sim {
        return Ok(Home::NoTap("as asked for".to_owned()));
    }
    if let Err(error) = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
    {
        return Ok(Home::NoTap(format!("/dev/net/tun: {error}")));
    }
    if netns::Namespace::new().is_ok() {
        return Ok(Home::Here);
    }
    if std::env::var_os(INSIDE).is_some() {
        return Ok(Home::NoTap("no network namespaces".to_owned()));
    }
    // Root inside the namespace would look for root's runtime directory, which is not its own.
    let runtime = client::runtime_dir()?;
    if let Err(error) = netdev::own::become_root_in_user_namespace() {
        return Ok(Home::NoTap(format!("no user namespaces: {error}")));
    }
    let status = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(client::RUNTIME_DIR_VAR, runtime)
        .env(INSIDE, "1")
        .status()
        .context("cannot start again inside a user namespace")?;
    Ok(Home::Elsewhere(status))
}
