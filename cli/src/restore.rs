//! Changes that machines make to the host's network, and obstacles to them.
//!
//! A machine with address translation switches forwarding on and switches it off at its end. A
//! machine that was killed cannot: its note (`client::write_note`) says what was off before, and
//! the next `up`, `run` or `down` takes it back.

use crate::host::networks;
use crate::output;
use abi::machine::Uplink;
use config::{Cidr, Config};
use netdev::netns::{self, Identity};
use netdev::{forwarding, look};
use serde::{Deserialize, Serialize};
use std::fs;

/// The note of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct HostNote {
    /// The system's start that it is of.
    boot: String,
    uplinks: Vec<Translated>,
}

/// A NIC with address translation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Translated {
    nic: String,
    ifname: String,
    /// As the configuration has it; none: the machine's own.
    netns: Option<String>,
    /// The namespace that this was when the machine started.
    namespace: Identity,
    addresses: Vec<Cidr>,
    /// Settings that are off when no machine needs them.
    off_before: Vec<String>,
}

impl HostNote {
    /// The note of a machine with this configuration; none: it changes nothing.
    fn of(config: &Config) -> Option<Self> {
        let uplinks = translated(config).filter_map(|(nic, ifname, port)| {
            let netns = port.netns.clone();
            let namespace = identity(netns.as_deref())?;
            let addresses = port.addresses.clone();
            // The machine's start says why, if it cannot be looked at.
            let off_before = look::would_switch_on(netns.as_deref(), &networks(&addresses)).ok()?;
            Some(Translated {
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

    /// Adds the uplinks of `other`, which the machine has until it is changed.
    fn with(mut self, other: Self) -> Self {
        for mut uplink in other.uplinks {
            let same = |this: &&mut Translated| {
                (&this.ifname, this.namespace) == (&uplink.ifname, uplink.namespace)
            };
            match self.uplinks.iter_mut().find(same) {
                // The machine has switched them on meanwhile.
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

    /// Keeps the uplinks that `becomes` has, too.
    fn only(mut self, becomes: &Self) -> Self {
        self.uplinks.retain(|this| {
            let is_it = |other: &Translated| {
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

/// Name, interface and port of every NIC with address translation.
fn translated(
    config: &Config,
) -> impl Iterator<Item = (String, String, &config::KernelPort)> + use<'_> {
    let nics = config.nics.iter().enumerate();
    nics.filter_map(|(n, nic)| match nic.uplink {
        Some(Uplink::Nat(_)) => Some((nic.name.clone(), config.nic_ifname(n)?, nic.kind.port()?)),
        _ => None,
    })
}

/// Identifies this boot of the system.
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

/// The note that a machine with this configuration needs before it starts.
pub(crate) fn note(config: &Config) -> anyhow::Result<Option<String>> {
    HostNote::of(config).map(|note| note.text()).transpose()
}

/// Makes a running machine what a file says by `change`, which returns whether all of it was done.
/// The note has what the machine was beside what it becomes until then.
pub(crate) fn noting_change<T>(
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

/// Takes back what machines that do not run have left switched on, and says so. Returns the names
/// of the machines.
pub(crate) fn take_back() -> Vec<String> {
    let mut cleared = Vec::new();
    let done = client::clear_notes(|name, text| {
        let Ok(note) = serde_json::from_str::<HostNote>(text) else {
            output::warn(&format!(
                "the note {name}.host cannot be read and is removed"
            ));
            return true;
        };
        let taken = note.uplinks.iter().map(take_back_of);
        let taken: anyhow::Result<Vec<_>> = match note.boot == boot() {
            true => taken.collect(),
            // Nothing of it is left.
            false => Ok(Vec::new()),
        };
        match taken {
            Ok(taken) => {
                let taken: Vec<_> = taken.into_iter().flatten().collect();
                if !taken.is_empty() {
                    let keys = taken.join(", ");
                    output::warn(&format!(
                        "{name} has ended out of order; {keys}, which it had switched on, is \
                         switched off"
                    ));
                    cleared.push(name.to_owned());
                }
                true
            }
            Err(error) => {
                output::warn(&format!(
                    "{name} has ended out of order and may have left forwarding on: {error}"
                ));
                false
            }
        }
    });
    if let Err(error) = done {
        output::warn(&format!(
            "what dead machines have left is not looked at: {error}"
        ));
    }
    cleared
}

fn take_back_of(uplink: &Translated) -> anyhow::Result<Vec<&'static str>> {
    let Some(place) = place_of(uplink, None) else {
        // It is gone, and its settings with it.
        return Ok(Vec::new());
    };
    let off = &uplink.off_before;
    let taken = forwarding::take_back_of_dead(place.as_deref(), uplink.namespace, off)?;
    Ok(taken.unwrap_or_default())
}

/// How the namespace of an uplink is entered now: by its name, as the caller's (`Some(None)`), or
/// by a process in it. None: it is not there.
fn place_of(uplink: &Translated, process: Option<u32>) -> Option<Option<String>> {
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

/// Removes the persistent interfaces of a dead machine from this namespace and from all that have
/// names.
pub(crate) fn remove_interfaces(name: &str) -> Vec<String> {
    let named = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let named = named.filter_map(|entry| entry.file_name().into_string().ok());
    let places = std::iter::once(None).chain(named.map(Some));
    let removed = places.filter_map(|netns| look::remove_left(netns.as_deref(), name).ok());
    removed.flatten().collect()
}

/// Warns of rules of the host that drop what a machine with this configuration is to forward.
pub(crate) fn warn_of_rules(config: &Config) {
    for (nic, ifname, port) in translated(config) {
        let found = look::dropping(port.netns.as_deref(), &ifname, &networks(&port.addresses));
        for trouble in found.unwrap_or_default() {
            output::warn(&format!("nic \"{nic}\": {trouble}"));
        }
    }
}

/// Warns of everything that keeps the address translation of a running machine from working, as far
/// as this user may look: its core is process `core`.
pub(crate) fn warn_of_troubles(name: &str, core: u32) {
    let note = client::note_of(name).ok().flatten();
    let note = note.and_then(|text| serde_json::from_str::<HostNote>(&text).ok());
    for uplink in note.unwrap_or_default().uplinks {
        let Some(place) = place_of(&uplink, Some(core)) else {
            continue;
        };
        let networks = networks(&uplink.addresses);
        let found = look::troubles(place.as_deref(), &uplink.ifname, &networks);
        for trouble in found.unwrap_or_default() {
            output::warn(&format!("nic \"{}\": {trouble}", uplink.nic));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uplink(ifname: &str, off_before: &[&str]) -> Translated {
        Translated {
            nic: "up".to_owned(),
            ifname: ifname.to_owned(),
            netns: None,
            namespace: [1, 2],
            addresses: Vec::new(),
            off_before: off_before.iter().map(|key| (*key).to_owned()).collect(),
        }
    }

    #[test]
    fn a_note_keeps_what_the_machine_had_before() {
        let note = |uplinks: &[Translated]| HostNote {
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
    fn a_namespace_is_found_by_name_or_process_or_not_at_all() {
        let own = netns::identity(netns::OWN).unwrap();
        let place = |netns: Option<&str>, namespace| {
            let netns = netns.map(str::to_owned);
            let uplink = Translated {
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
