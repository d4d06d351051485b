//! Restores the host's network settings that machines changed, and reports obstacles to a machine's
//! traffic.
//!
//! A machine with address translation enables forwarding when it starts and disables it when it
//! ends. A killed machine cannot disable it. Therefore its note (`client::write_note`) lists the
//! settings that were off before, and the next `up`, `run` or `down` disables them again.

use crate::host::networks;
use crate::output;
use abi::machine::Uplink;
use config::{Cidr, Config};
use netdev::netns::{self, Identity};
use netdev::{forwarding, host_checks};
use serde::{Deserialize, Serialize};
use std::fs;

/// The note of a machine: the settings to restore if it is killed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct HostNote {
    /// The id of the system boot in which the note was written.
    boot: String,
    uplinks: Vec<NattedNic>,
}

/// A NIC with address translation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct NattedNic {
    nic: String,
    ifname: String,
    /// The namespace as the configuration names it; `None` means the machine's namespace.
    netns: Option<String>,
    /// The identity of this namespace when the machine started.
    namespace: Identity,
    addresses: Vec<Cidr>,
    /// Settings that were off before any machine enabled them.
    off_before: Vec<String>,
}

impl HostNote {
    /// Returns the note of a machine with this configuration, or `None` if the machine changes no
    /// setting.
    fn of(config: &Config) -> Option<Self> {
        let uplinks = translated(config).filter_map(|(nic, ifname, port)| {
            let netns = port.netns.clone();
            let namespace = identity(netns.as_deref())?;
            let addresses = port.addresses.clone();
            // If this check fails, the start of the machine reports the reason.
            let off_before =
                host_checks::would_switch_on(netns.as_deref(), &networks(&addresses)).ok()?;
            Some(NattedNic {
                nic,
                ifname,
                netns,
                namespace,
                addresses,
                off_before,
            })
        });
        let uplinks: Vec<_> = uplinks.collect();
        (!uplinks.is_empty()).then(|| Self {
            boot: boot(),
            uplinks,
        })
    }

    /// Adds the uplinks of `other`, which the machine has until the change.
    fn with(mut self, other: Self) -> Self {
        for mut uplink in other.uplinks {
            let same = |this: &&mut NattedNic| {
                (&this.ifname, this.namespace) == (&uplink.ifname, uplink.namespace)
            };
            match self.uplinks.iter_mut().find(same) {
                // Settings that were off before either machine stay in the note.
                Some(this) => {
                    uplink
                        .off_before
                        .retain(|key| !this.off_before.contains(key));
                    this.off_before.append(&mut uplink.off_before);
                }
                None => self.uplinks.push(uplink),
            }
        }
        self
    }

    /// Keeps only the uplinks that `becomes` also has.
    fn only(mut self, becomes: &Self) -> Self {
        self.uplinks.retain(|this| {
            let is_it = |other: &NattedNic| {
                (&other.ifname, other.namespace) == (&this.ifname, this.namespace)
            };
            becomes.uplinks.iter().any(is_it)
        });
        self
    }

    fn text(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string(self)?)
    }
}

/// Returns name, interface and port of every NIC with address translation.
fn translated(
    config: &Config,
) -> impl Iterator<Item = (String, String, &config::KernelPort)> + use<'_> {
    let nics = config.nics.iter().enumerate();
    nics.filter_map(|(n, nic)| match nic.uplink {
        Some(Uplink::Nat(_)) => Some((nic.name.clone(), config.nic_ifname(n)?, nic.kind.port()?)),
        _ => None,
    })
}

/// Returns the id of this boot of the system.
fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim().to_owned()
}

fn identity(netns: Option<&str>) -> Option<Identity> {
    match netns {
        Some(netns) => netns::identity(netns::path(netns)),
        None => netns::identity(netns::OWN),
    }
}

/// Returns the note that a machine with this configuration needs before it starts.
pub(crate) fn note(config: &Config) -> anyhow::Result<Option<String>> {
    HostNote::of(config).map(|note| note.text()).transpose()
}

/// Calls `change`, which changes a running machine to `becomes` and returns whether it completed
/// the change. During the call, the note covers both the old and the new machine.
pub(crate) fn with_note<T>(
    name: &str,
    becomes: &Config,
    change: impl FnOnce() -> anyhow::Result<T>,
    is_done: impl FnOnce(&T) -> bool,
) -> anyhow::Result<T> {
    let before =
        client::note_of(name)?.and_then(|text| serde_json::from_str::<HostNote>(&text).ok());
    let becomes = HostNote::of(becomes);
    if before.is_none() && becomes.is_none() {
        return change();
    }
    let becomes = becomes.unwrap_or_else(|| HostNote {
        boot: boot(),
        uplinks: Vec::new(),
    });
    let both = becomes.clone().with(before.unwrap_or_default());
    client::write_note(name, &both.text()?)?;
    let changed = change()?;
    if is_done(&changed) {
        client::write_note(name, &both.only(&becomes).text()?)?;
    }
    Ok(changed)
}

/// Restores and reports the settings that dead machines have left enabled. Returns the names of
/// these machines.
pub(crate) fn restore_dead_machines() -> Vec<String> {
    let mut cleared = Vec::new();
    let done = client::clear_notes(|name, text| {
        let Ok(note) = serde_json::from_str::<HostNote>(text) else {
            output::warn(&format!(
                "the note {name}.host cannot be read and is removed"
            ));
            return true;
        };
        let taken = note.uplinks.iter().map(restore_uplink);
        let taken: anyhow::Result<Vec<_>> = match note.boot == boot() {
            true => taken.collect(),
            // The machine has left no setting enabled.
            false => Ok(Vec::new()),
        };
        match taken {
            Ok(taken) => {
                let taken: Vec<_> = taken.into_iter().flatten().collect();
                if !taken.is_empty() {
                    let keys = taken.join(", ");
                    output::warn(&format!(
                        "{name} did not shut down cleanly; {keys}, which it had enabled, is \
                     disabled"
                    ));
                    cleared.push(name.to_owned());
                }
                true
            }
            Err(error) => {
                output::warn(&format!(
                    "{name} did not shut down cleanly and may have left forwarding enabled: {error}"
                ));
                false
            }
        }
    });
    if let Err(error) = done {
        output::warn(&format!(
            "cannot check for settings that dead machines left: {error}"
        ));
    }
    cleared
}

fn restore_uplink(uplink: &NattedNic) -> anyhow::Result<Vec<&'static str>> {
    let Some(place) = place_of(uplink, None) else {
        // The settings no longer exist, because their namespace does not.
        return Ok(Vec::new());
    };
    let off = &uplink.off_before;
    let taken = forwarding::switch_off_for_dead(place.as_deref(), uplink.namespace, off)?;
    Ok(taken.unwrap_or_default())
}

/// Returns a name or path by which to enter the namespace of an uplink. The path may belong to a
/// process in the namespace. Returns `Some(None)` for the caller's namespace, and `None` if the
/// namespace no longer exists.
fn place_of(uplink: &NattedNic, process: Option<u32>) -> Option<Option<String>> {
    let is_it = |netns: Option<&str>| identity(netns) == Some(uplink.namespace);
    for netns in [uplink.netns.as_deref(), None] {
        if is_it(netns) {
            return Some(netns.map(str::to_owned));
        }
    }
    let path = |pid: &str| format!("/proc/{pid}/ns/net");
    let listed = fs::read_dir("/proc").into_iter().flatten().flatten();
    let listed = listed.filter_map(|entry| entry.file_name().into_string().ok());
    let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let pids = process.map(|pid| pid.to_string()).into_iter();
    let mut paths = pids.chain(listed.filter(is_number)).map(|pid| path(&pid));
    paths.find(|path| is_it(Some(path))).map(Some)
}

/// Removes the persistent interfaces of a dead machine from this namespace and all named ones.
pub(crate) fn remove_interfaces(name: &str) -> Vec<String> {
    let named = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let named = named.filter_map(|entry| entry.file_name().into_string().ok());
    let places = std::iter::once(None).chain(named.map(Some));
    let removed =
        places.filter_map(|netns| host_checks::remove_leftovers(netns.as_deref(), name).ok());
    removed.flatten().collect()
}

/// Warns about host firewall rules that drop traffic forwarded for a machine with this
/// configuration.
pub(crate) fn warn_of_rules(config: &Config) {
    for (nic, ifname, port) in translated(config) {
        let found =
            host_checks::dropping(port.netns.as_deref(), &ifname, &networks(&port.addresses));
        for problem in found.unwrap_or_default() {
            output::warn(&format!("nic \"{nic}\": {problem}"));
        }
    }
}

/// Warns about obstacles to a running machine's address translation, as far as this user can read
/// them. `core` is the process id of the machine's core.
pub(crate) fn warn_of_nat_faults(name: &str, core: u32) {
    let note = client::note_of(name).ok().flatten();
    let note = note.and_then(|text| serde_json::from_str::<HostNote>(&text).ok());
    for uplink in note.unwrap_or_default().uplinks {
        let Some(place) = place_of(&uplink, Some(core)) else {
            continue;
        };
        let networks = networks(&uplink.addresses);
        let found = host_checks::nat_faults(place.as_deref(), &uplink.ifname, &networks);
        for problem in found.unwrap_or_default() {
            output::warn(&format!("nic \"{}\": {problem}", uplink.nic));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uplink(ifname: &str, off_before: &[&str]) -> NattedNic {
        NattedNic {
            nic: "up".to_owned(),
            ifname: ifname.to_owned(),
            netns: None,
            namespace: [1, 2],
            addresses: Vec::new(),
            off_before: off_before.iter().map(|key| (*key).to_owned()).collect(),
        }
    }

    #[test]
    fn a_note_stores_the_previous_settings() {
        let note = |uplinks: &[NattedNic]| HostNote {
            boot: "b".to_owned(),
            uplinks: uplinks.to_vec(),
        };
        let becomes = note(&[uplink("a", &[]), uplink("new", &["v6"])]);
        let before = note(&[uplink("a", &["v4"]), uplink("old", &["v4"])]);
        let both = [
            uplink("a", &["v4"]),
            uplink("new", &["v6"]),
            uplink("old", &["v4"]),
        ];
        assert_eq!(becomes.clone().with(before), note(&both));
        assert_eq!(note(&both).only(&becomes), note(&both[..2]));
    }

    #[test]
    fn a_namespace_is_found_by_name_or_process() {
        let own = netns::identity(netns::OWN).unwrap();
        let place = |netns: Option<&str>, namespace| {
            let netns = netns.map(str::to_owned);
            let uplink = NattedNic {
                netns,
                namespace,
                ..uplink("a", &[])
            };
            place_of(&uplink, None)
        };
        let path = "/proc/self/ns/net";
        assert_eq!(place(Some(path), own), Some(Some(path.to_owned())));
        assert_eq!(place(Some("absent"), own), Some(None));
        assert_eq!(place(None, [0, 0]), None);
    }
}
