//! Chooses where the demonstration creates its namespaces: in this process, in a new user
//! namespace, or nowhere.

use anyhow::Context as _;
use netdev::netns;
use std::fs::OpenOptions;
use std::process::{Command, ExitStatus};

/// Outcome of the choice.
pub(super) enum NamespaceSite {
    /// Namespaces are created in this process.
    Here,
    /// The demonstration ran in a child process, inside a user namespace, and exited with this
    /// status.
    Elsewhere(ExitStatus),
    /// Namespaces or TAPs are not available, for this reason.
    NoTap(String),
}

/// Name of the environment variable that is set in the process inside the user namespace.
const INSIDE_NAMESPACE_ENV: &str = "GRANTWAY_DEMO_INSIDE";

/// Chooses the site. Must be called before the process starts any thread.
pub(super) fn find(sim: bool) -> anyhow::Result<NamespaceSite> {
    if sim {
        return Ok(NamespaceSite::NoTap("as requested".to_owned()));
    }
    if let Err(error) = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
    {
        return Ok(NamespaceSite::NoTap(format!("/dev/net/tun: {error}")));
    }
    if netns::Namespace::new().is_ok() {
        return Ok(NamespaceSite::Here);
    }
    if std::env::var_os(INSIDE_NAMESPACE_ENV).is_some() {
        return Ok(NamespaceSite::NoTap("no network namespaces".to_owned()));
    }
    // The child is root inside the namespace, and would use root's runtime directory, which this
    // user does not own.
    let runtime = client::runtime_dir()?;
    if let Err(error) = netdev::tool_setup::become_root_in_user_namespace() {
        return Ok(NamespaceSite::NoTap(format!("no user namespaces: {error}")));
    }
    let status = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(client::RUNTIME_DIR_VAR, runtime)
        .env(INSIDE_NAMESPACE_ENV, "1")
        .status()
        .context("cannot restart inside a user namespace")?;
    Ok(NamespaceSite::Elsewhere(status))
}
