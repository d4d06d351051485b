//! Packet forwarding between a namespace's interfaces, which several machines may need.
//!
//! The kernel stores the record: the rules of each uplink are a table, whose comment names the
//! settings that were off before the first machine switched them on. A later machine copies the
//! comment. The last machine that shuts down switches the settings off. The kernel removes a table
//! with the process that owns it, so the table of a killed machine does not keep forwarding on.

use crate::error::NetError;
use crate::interface::in_namespace;
use crate::netns::{self, Identity};
use crate::nftables::{self, NftTable};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// The prefix of the names of all uplink tables.
pub(crate) const PREFIX: &str = "grantway-";
/// Name of the table that serves as a lock: only one process can own it.
const LOCK: &str = "grantway-lock";
/// Maximum time that a process waits for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Forwarding of IPv4 and IPv6 packets between interfaces.
const SETTINGS: [&str; 2] = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];

/// The lock for changes of forwarding in a namespace. The kernel releases it when the holder exits.
pub(crate) struct Lock(#[expect(dead_code, reason = "dropping it releases the lock")] OwnedFd);

impl Lock {
    /// Takes the lock of the calling thread's namespace.
    pub(crate) fn take() -> io::Result<Self> {
        let end = Instant::now() + LOCK_TIMEOUT;
        loop {
            match NftTable::empty(LOCK, "").install() {
                Ok(table) => return Ok(Self(table)),
                Err(error) => {
                    let is_taken = nftables::tables()?.iter().any(|table| table.name == LOCK);
                    // The kernel returns EPERM for a table of another process, which may have
                    // released the table between the two calls.
                    let is_temporary = is_taken || error.raw_os_error() == Some(libc::EPERM);
                    if !is_temporary || Instant::now() >= end {
                        return Err(error);
                    }
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns the settings that the forwarding of these networks' packets needs.
pub(crate) fn settings(networks: &[(IpAddr, u8)]) -> Vec<&'static str> {
    let is = |wanted: fn(&IpAddr) -> bool| networks.iter().any(|(ip, _)| wanted(ip));
    let wanted = [is(IpAddr::is_ipv4), is(IpAddr::is_ipv6)];
    let settings = SETTINGS.into_iter().zip(wanted);
    settings.filter_map(|(key, is)| is.then_some(key)).collect()
}

/// Returns the `settings` that are off, or were off before another machine switched them on.
pub(crate) fn originally_off(_: &Lock, settings: &[&str]) -> io::Result<Vec<String>> {
    let recorded_settings = recorded_settings()?;
    let mut off = Vec::new();
    for &setting in settings {
        if !is_on(setting)? || recorded_settings.iter().any(|note| note == setting) {
            off.push(setting.to_owned());
        }
    }
    Ok(off)
}

/// Returns the comment of a table that needs these settings, which were off before.
pub(crate) fn comment(originally_off: &[String]) -> String {
    match originally_off {
        [] => String::new(),
        _ => format!("switched on: {}", originally_off.join(" ")),
    }
}

pub(crate) fn switch_on(_: &Lock, settings: &[&str]) -> io::Result<()> {
    for setting in settings {
        if !is_on(setting)? {
            fs::write(file(setting), "1")?;
        }
    }
    Ok(())
}

/// Switches off and returns the `settings` that no machine needs any longer.
pub(crate) fn switch_off_unneeded(_: &Lock, settings: &[String]) -> io::Result<Vec<&'static str>> {
    let recorded_settings = recorded_settings()?;
    let is_unneeded = |setting: &&str| {
        settings.iter().any(|on| on == setting)
            && !recorded_settings.iter().any(|note| note == setting)
    };
    let mut taken = Vec::new();
    for setting in SETTINGS.into_iter().filter(is_unneeded) {
        if is_on(setting)? {
            fs::write(file(setting), "0")?;
            taken.push(setting);
        }
    }
    Ok(taken)
}

/// Returns the comments of all uplink tables of the namespace.
fn recorded_settings() -> io::Result<Vec<String>> {
    let tables = nftables::tables()?;
    let ours = tables.iter().filter(|table| table.name.starts_with(PREFIX));
    let notes = ours.flat_map(|table| table.comment.split(' ').map(str::to_owned));
    Ok(notes.collect())
}

pub(crate) fn is_on(setting: &str) -> io::Result<bool> {
    Ok(fs::read_to_string(file(setting))?.trim() != "0")
}

fn file(setting: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(setting.replace('.', "/"))
}

/// Switches off and returns the settings that a dead machine left on in the namespace `of`, unless
/// a running machine needs them. Returns `None` if `netns` no longer names that namespace.
///
/// # Errors
/// Returns an error if the namespace cannot be entered, or a setting cannot be written.
pub fn switch_off_for_dead(
    netns: Option<&str>,
    of: Identity,
    settings: &[String],
) -> Result<Option<Vec<&'static str>>, NetError> {
    let place = netns.map_or(PathBuf::from(netns::OWN), netns::path);
    if netns::identity(place) != Some(of) {
        return Ok(None);
    }
    let end = || switch_off_unneeded(&Lock::take()?, settings);
    let taken = in_namespace(netns, end)?.map_err(|error| cannot(netns, error))?;
    Ok(Some(taken))
}

fn cannot(netns: Option<&str>, error: io::Error) -> NetError {
    NetError::Forwarding {
        namespace: crate::interface::namespace(netns),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use testing::require;

    const V4: &str = "net.ipv4.ip_forward";

    fn uplink(name: &str) -> io::Result<(OwnedFd, Vec<String>)> {
        let lock = Lock::take()?;
        let off = originally_off(&lock, &[V4])?;
        let name = format!("{PREFIX}{name}");
        let table = NftTable::new(&name, &comment(&off)).install()?;
        switch_on(&lock, &[V4])?;
        Ok((table, off))
    }

    fn inside<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> T {
        Namespace::new().unwrap().enter(work).unwrap().unwrap()
    }

    fn end((table, off): (OwnedFd, Vec<String>), name: &str) -> io::Result<bool> {
        let lock = Lock::take()?;
        nftables::delete(&table, &format!("{PREFIX}{name}"))?;
        switch_off_unneeded(&lock, &off)?;
        is_on(V4)
    }

    #[test]
    fn the_last_uplink_switches_forwarding_off() {
        require!(netns);
        let states = inside(|| {
            fs::write(file(V4), "0")?;
            let (first, second) = (uplink("a")?, uplink("b")?);
            Ok([is_on(V4)?, end(first, "a")?, end(second, "b")?])
        });
        assert_eq!(states, [true, true, false]);
    }

    #[test]
    fn forwarding_that_was_on_before_remains_on() {
        require!(netns);
        let states = inside(|| {
            fs::write(file(V4), "1")?;
            let only = uplink("a")?;
            assert!(only.1.is_empty(), "{only:?}");
            end(only, "a")
        });
        assert!(states);
    }

    #[test]
    fn the_last_uplink_after_a_kill_switches_it_off() {
        require!(netns);
        let states = inside(|| {
            fs::write(file(V4), "0")?;
            let (killed, other) = (uplink("a")?, uplink("b")?);
            let off = killed.1.clone();
            drop(killed);
            // A new process of another test inherits the descriptor until it executes its program.
            testing::wait_until("the table still exists", || {
                let tables = nftables::tables().unwrap();
                !tables.iter().any(|table| table.name == "grantway-a")
            });
            let of = netns::identity(netns::OWN).unwrap();
            let found = switch_off_for_dead(None, of, &off).unwrap();
            assert_eq!(found, Some(vec![]), "the other uplink needs it");
            let after = end(other, "b")?;
            fs::write(file(V4), "1")?;
            let again = switch_off_for_dead(None, of, &off).unwrap();
            assert_eq!(switch_off_for_dead(None, [0, 0], &off).unwrap(), None);
            Ok((after, again, is_on(V4)?))
        });
        assert_eq!(states, (false, Some(vec![V4]), false));
    }

    #[test]
    fn the_lock_excludes_others_until_released() {
        require!(netns);
        inside(|| {
            let held = Lock::take()?;
            assert!(NftTable::empty(LOCK, "").install().is_err());
            drop(held);
            Lock::take().map(drop)
        });
    }
}
