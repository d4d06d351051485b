//! Set-up for tools, which netd does not use: root in a user namespace, settings, a rule against
//! unmatched packets, and a TAP with one queue.

use crate::TapSpec;
use crate::error::NetError;
use crate::netns::unshare;
use crate::nftables::{DROP, HOOK_PREROUTING, NftTable};
use crate::tap::open_queues;
use rustix::thread::UnshareFlags;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

const PRIORITY_MANGLE: i32 = -150;

/// Opens a TAP like [`open_queues`], and returns its shared descriptor.
///
/// # Errors
/// Returns the errors of [`open_queues`].
pub fn open_tap(spec: &TapSpec) -> Result<OwnedFd, NetError> {
    open_queues(spec).map(|opened| opened.shared)
}

/// Moves the process into a new user namespace in which it is root, so that it may create network
/// namespaces without privileges. The process must have a single thread.
///
/// # Errors
/// Returns an error if user namespaces are disabled, or the process has several threads.
pub fn become_root_in_user_namespace() -> io::Result<()> {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    unshare(UnshareFlags::NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// Writes a setting of the calling thread's namespace. For example,
/// `set_sysctl("ipv4/tcp_congestion_control", "cubic")` sets `net.ipv4.tcp_congestion_control`.
///
/// # Errors
/// Returns an error if the setting does not exist, the value is invalid, or writing it is not
/// permitted.
pub fn set_sysctl(key: &str, value: &str) -> io::Result<()> {
    fs::write(Path::new("/proc/sys/net").join(key), value)
}

/// Drops every packet in the calling thread's network namespace that belongs to no connection and
/// begins none, until the descriptor and all its copies are closed. With address translation, this
/// system, not the packet's destination, would receive such a packet, and would answer with a reset
/// that ends the sender's connection. Must not be used in a namespace that other programs share.
///
/// # Errors
/// Returns an error without CAP_NET_ADMIN, nf_tables with connection tracking, or Linux 5.12.
pub fn drop_unmatched_packets() -> std::io::Result<OwnedFd> {
    let mut table = NftTable::empty("grantway-strays", "");
    table.chain("strays", "filter", HOOK_PREROUTING, PRIORITY_MANGLE);
    table.rule("strays", |rule| {
        rule.stray();
        rule.verdict(DROP);
    });
    table.install()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use std::process::Command;
    use testing::require;

    /// Returns the rules as `nft` lists them.
    fn rules() -> String {
        let nft = Command::new("nft").args(["list", "ruleset"]).output();
        String::from_utf8(nft.unwrap().stdout).unwrap()
    }

    #[test]
    fn strays_are_dropped_while_the_rule_is_held() {
        require!(netns, tool("nft"));
        let held = Namespace::new()
            .unwrap()
            .enter(|| {
                let rule = drop_unmatched_packets().unwrap();
                let held = rules();
                drop(rule);
                // A new process of another test inherits the descriptor until it executes its
                // program.
                testing::wait_until("the rule still exists", || rules().is_empty());
                held
            })
            .unwrap();
        for part in ["hook prerouting priority mangle", "ct state invalid drop"] {
            assert!(held.contains(part), "{held}");
        }
    }
}
