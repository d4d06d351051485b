//! Checks whether this system meets a configuration's requirements: namespaces, CPUs, files,
//! groups. Creates namespaces for users who may not change this system's network.

mod interfaces;

pub(crate) use interfaces::networks;

use abi::machine::{Access, Group};
use anyhow::Context;
use config::{CaptureFiles, Config, ConfigPart, Endpoint, Finding, NicKind, SoftWire, XdpWire};
use netdev::NetError;
use netdev::netns;
use netdev::pci::PciBus;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tool::Failure;

/// Maximum time that the kernel needs to remove the interfaces of a killed machine after its
/// processes have exited.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns everything that the configuration needs and this system lacks.
pub(crate) fn check(config: &Config) -> Vec<Finding> {
    let mut found = check_without_interfaces(config);
    let end = Instant::now() + REMOVAL_TIMEOUT;
    let mut obstacles = interfaces::check(config);
    while !obstacles.is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        obstacles = interfaces::check(config);
    }
    found.append(&mut obstacles);
    found
}

/// Like [`check`], but does not compare with existing interfaces, because these include those of
/// the running machine.
pub(crate) fn check_without_interfaces(config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    let allowed = allowed_cpus();
    cpus(
        ConfigPart::Driver,
        &config.driver.cpus,
        &allowed,
        &mut found,
    );
    groups(config, &mut found);
    for (n, nic) in config.nics.iter().enumerate() {
        if let NicKind::Soft { cpus: of, .. } = &nic.kind {
            cpus(ConfigPart::Nic(n), of, &allowed, &mut found);
        }
        match &nic.kind {
            NicKind::Pcap(pcap) => files(ConfigPart::Nic(n), pcap, &mut found),
            NicKind::Xdp {
                wire: XdpWire::Netdev { name, netns },
            } => {
                let place = (name.as_str(), netns.as_deref());
                netdev(
                    ConfigPart::Nic(n),
                    place,
                    nic.dedicated_queues(),
                    &mut found,
                );
            }
            NicKind::Vfio { device, .. } => pci(ConfigPart::Nic(n), device, &mut found),
            kind => {
                if let Some(port) = kind.port() {
                    namespace(ConfigPart::Nic(n), port.netns.as_deref(), &mut found);
                }
            }
        }
    }
    for (g, guest) in config.guests.iter().enumerate() {
        cpus(ConfigPart::Guest(g), &guest.cpus, &allowed, &mut found);
        for (v, vif) in guest.vifs.iter().enumerate() {
            match &vif.endpoint {
                Endpoint::Tap(port) => {
                    namespace(ConfigPart::Vif(g, v), port.netns.as_deref(), &mut found);
                }
                Endpoint::Pcap(pcap) => files(ConfigPart::Vif(g, v), pcap, &mut found),
                _ => {}
            }
        }
    }
    found
}

/// Like [`check`], for the guests that `of` selects. `new` states that no guest or NIC is removed
/// before the interfaces of these guests are created. If it is true, also checks these interfaces.
pub(crate) fn check_guests(config: &Config, new: bool, of: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut found = match new {
        true => check(config),
        false => check_without_interfaces(config),
    };
    found.retain(|finding| {
        let guest = match finding.part {
            ConfigPart::Guest(g) | ConfigPart::Vif(g, _) => config.guests.get(g),
            _ => None,
        };
        guest.is_some_and(|guest| of(&guest.name))
    });
    found
}

/// Checks that TAPs can be created.
pub(crate) fn tun() -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .map(drop)
}

/// Makes this process root of a new user namespace, even if it is already root, with a new network
/// namespace whose loopback is up. Returns the command that restarts this program with the same
/// arguments. Must be called before any thread starts. `what` names the purpose of the namespaces
/// in errors.
pub(crate) fn in_new_namespaces(what: &str) -> anyhow::Result<Command> {
    // Without this variable, the process inside would use root's runtime directory instead of this
    // user's.
    let runtime = client::runtime_dir()?;
    let cannot = |e: std::io::Error| {
        Failure::CannotRun(format!("{what} needs root, or user namespaces ({e})"))
    };
    netdev::tool_setup::become_root_in_user_namespace().map_err(cannot)?;
    netns::unshare_net().map_err(cannot)?;
    netns::loopback_up().context("bring the loopback up")?;
    restart_command(runtime)
}

/// Like [`in_new_namespaces`], but joins the user namespace of this file, without a new network
/// namespace.
pub(crate) fn in_user_namespace(namespace: &File) -> anyhow::Result<Command> {
    let runtime = client::runtime_dir()?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))
        .map_err(|e| Failure::CannotRun(format!("cannot enter its user namespace ({e})")))?;
    restart_command(runtime)
}

/// Returns the command that starts this program with the same arguments and this runtime directory.
fn restart_command(runtime: PathBuf) -> anyhow::Result<Command> {
    let mut again = Command::new(std::env::current_exe().context("find this program's file")?);
    again
        .args(std::env::args_os().skip(1))
        .env(client::RUNTIME_DIR_VAR, runtime);
    Ok(again)
}

/// Returns the groups that a configuration names, by their keys.
fn named_groups(config: &Config) -> [(&'static str, Option<&str>); 2] {
    [
        ("look_group", config.look_group.as_deref()),
        ("change_group", config.change_group.as_deref()),
    ]
}

fn groups(config: &Config, found: &mut Vec<Finding>) {
    for (key, name) in named_groups(config) {
        let Some(name) = name else { continue };
        let (what, remedy) = match group(name) {
            Ok(Some(_)) if rustix::process::geteuid().is_root() => continue,
            Ok(Some(_)) => (
                format!("`{key}` is \"{name}\", but this machine does not belong to root"),
                "remove it: only machines that root starts accept other users".to_owned(),
            ),
            Ok(None) => (
                format!("the group {name} does not exist"),
                format!("create it with `groupadd --system {name}`"),
            ),
            Err(error) => (
                format!("cannot look up the group {name}: {error}"),
                "check /etc/group and /etc/passwd".to_owned(),
            ),
        };
        found.push(Finding {
            part: ConfigPart::Machine,
            key,
            what,
            remedy,
        });
    }
}

/// Returns the users and groups that may use the machine, without groups that this system does not
/// know.
pub(crate) fn access(config: &Config) -> anyhow::Result<Access> {
    let [query, change] = named_groups(config).map(|(_, name)| name.map(group).transpose());
    Ok(Access {
        query: query?.flatten(),
        change: change?.flatten(),
    })
}

/// Returns a group of this system with its members, or `None` if it does not exist. Reads the files
/// itself, because the C library would load modules into this statically linked program.
fn group(name: &str) -> std::io::Result<Option<Group>> {
    let groups = std::fs::read_to_string("/etc/group")?;
    let users = std::fs::read_to_string("/etc/passwd")?;
    Ok(group_in(&groups, &users, name))
}

/// Like [`group`], from the text of both files (group(5), passwd(5)).
fn group_in(groups: &str, users: &str, name: &str) -> Option<Group> {
    let fields = |text: &str, name: &str| -> Option<Vec<String>> {
        let mut lines = text.lines().map(|line| line.split(':'));
        let found = lines.find(|line| line.clone().next() == Some(name));
        Some(found?.map(str::to_owned).collect())
    };
    let group = fields(groups, name)?;
    let members = group.get(3).map_or("", |members| members);
    // A member without an account is skipped, because it cannot connect.
    let id = |member| fields(users, member)?.get(2)?.parse().ok();
    Some(Group {
        id: group.get(2)?.parse().ok()?,
        members: members.split(',').filter_map(id).collect(),
    })
}

/// Returns whether any NIC or guest needs a TAP.
pub(crate) fn needs_tap(config: &Config) -> bool {
    let mut nics = config.nics.iter();
    let mut vifs = config.guests.iter().flat_map(|guest| &guest.vifs);
    let is_tap = |kind: &NicKind| match kind {
        NicKind::Tap { .. } | NicKind::Local { .. } => true,
        NicKind::Soft { wire, .. } => matches!(wire, SoftWire::Tap(_)),
        _ => false,
    };
    nics.any(|nic| is_tap(&nic.kind)) || vifs.any(|vif| matches!(vif.endpoint, Endpoint::Tap(_)))
}

/// Returns whether any NIC needs an AF_XDP socket.
pub(crate) fn needs_xdp(config: &Config) -> bool {
    let mut nics = config.nics.iter();
    nics.any(|nic| matches!(nic.kind, NicKind::Xdp { .. }))
}

/// Returns the CPUs on which this process and its children may run.
fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    let is_allowed = |&cpu: &usize| set.as_ref().is_ok_and(|set| set.is_set(cpu));
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(is_allowed)
        .collect()
}

fn cpus(part: ConfigPart, wanted: &[usize], allowed: &[usize], found: &mut Vec<Finding>) {
    for cpu in wanted.iter().filter(|cpu| !allowed.contains(cpu)) {
        found.push(Finding {
            part,
            key: "cpus",
            what: format!("this process has no CPU {cpu}"),
            remedy: format!("choose from {}", ranges(allowed)),
        });
    }
}

/// Formats numbers as `0-3, 6`.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(n) => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let shown = runs.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn netdev(
    part: ConfigPart,
    (name, netns): (&str, Option<&str>),
    queues: u32,
    found: &mut Vec<Finding>,
) {
    let before = found.len();
    namespace(part, netns, found);
    if found.len() > before {
        return;
    }
    let (what, remedy) = match netdev::xdp::inspect(name, netns, queues) {
        Ok(()) => return,
        Err(NetError::NoInterface { .. }) => (
            format!("the interface {name} does not exist"),
            "write a name that `ip link` shows, or leave `netdev` out to create a veth pair"
                .to_owned(),
        ),
        Err(NetError::Queues { queues, wanted, .. }) => (
            format!("the interface {name} has {queues} receive queues"),
            format!("give it {wanted}: `ethtool -L {name} combined {wanted}` (or rx {wanted})"),
        ),
        Err(error) => (
            error.to_string(),
            "run as root to enter the namespace".to_owned(),
        ),
    };
    found.push(Finding {
        part,
        key: "netdev",
        what,
        remedy,
    });
}

fn pci(part: ConfigPart, address: &str, found: &mut Vec<Finding>) {
    let Err(error) = PciBus::default().inspect(address) else {
        return;
    };
    found.push(Finding {
        part,
        key: "device",
        what: error.to_string(),
        remedy: "docs/nics.md describes how to prepare a device".to_owned(),
    });
}

fn namespace(part: ConfigPart, netns: Option<&str>, found: &mut Vec<Finding>) {
    let Some(netns) = netns else { return };
    if netns::path(netns).exists() {
        return;
    }
    let (what, remedy) = if netns.starts_with('/') {
        let what = format!("the network namespace {netns} does not exist");
        (
            what,
            "write a name as in `ip netns list`, or the path of one that exists".to_owned(),
        )
    } else {
        let what = format!("no network namespace is named {netns}");
        (what, format!("create it with `ip netns add {netns}`"))
    };
    found.push(Finding {
        part,
        key: "netns",
        what,
        remedy,
    });
}

fn files(
    part: ConfigPart,
    CaptureFiles { read, write, .. }: &CaptureFiles,
    found: &mut Vec<Finding>,
) {
    let mut say = |key, what, remedy: &str| {
        found.push(Finding {
            part,
            key,
            what,
            remedy: remedy.to_owned(),
        });
    };
    if let Some(file) = read
        && !Path::new(file).is_file()
    {
        say(
            "read",
            format!("the file {file} does not exist"),
            "write the path of a capture file",
        );
    }
    if let Some(file) = write {
        let path = Path::new(file);
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        if path.exists() {
            say(
                "write",
                format!("the file {file} exists"),
                "remove it, or write another path",
            );
        } else if folder.is_some_and(|folder| !folder.is_dir()) {
            say(
                "write",
                format!("the folder of {file} does not exist"),
                "create it with `mkdir -p`",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_members_with_accounts_are_listed() {
        let groups = "root:x:0:\n# none\nlook:x:50:ann,gone,bob\nbad:x:y:\nlooks:x:51:";
        let users = "root:x:0:0::/:/bin/sh\nann:x:1000:1000::/:\nbob:x:1001:1000::/:";
        let group = |id, members: &[u32]| {
            let members = members.to_vec();
            Some(Group { id, members })
        };
        let found = |name| group_in(groups, users, name);
        assert_eq!(found("look"), group(50, &[1000, 1001]));
        assert_eq!(found("looks"), group(51, &[]));
        for name in ["bad", "gone", "", "# none", "ann"] {
            assert_eq!(found(name), None, "{name}");
        }
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
    }

    #[test]
    fn only_missing_things_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there.pcap");
        std::fs::write(&there, "").unwrap();
        let there = there.to_str().unwrap();
        let text = format!(
            r#"
            [driver]
            cpus = [63]
            [[nic]]
            name = "a"
            kind = "tap"
            netns = "no-such-namespace"
            [[nic]]
            name = "b"
            kind = "tap"
            netns = "/proc/self/ns/net"
            [[nic]]
            name = "c"
            kind = "pcap"
            read = "{there}"
            write = "{there}.out"
            [[nic]]
            name = "d"
            kind = "pcap"
            read = "/no/such/file"
            write = "{there}"
            "#
        );
        let (config, source) = config::parse_with_source(&[config::ConfigFile {
            name: "f".into(),
            text,
        }])
        .unwrap();
        let text = source.check(check(&config)).unwrap_err().to_string();
        let lines: Vec<&str> = text.lines().collect();
        let [cpu, netns, read, write] = lines[..] else {
            panic!("{text}")
        };
        assert!(cpu.starts_with("f:3: [driver]: this process has no CPU 63; choose from 0"));
        assert_eq!(
            netns,
            "f:7: [[nic]] 1: no network namespace is named no-such-namespace; \
             create it with `ip netns add no-such-namespace`"
        );
        assert!(
            read.starts_with("f:20: ") && read.contains("/no/such/file"),
            "{read}"
        );
        assert!(
            write.starts_with("f:21: ") && write.contains("exists; remove it"),
            "{write}"
        );
        assert!(needs_tap(&config));
    }

    #[test]
    fn a_tap_behind_a_device_counts_as_a_tap() {
        for (wire, needs) in [("tap", true), ("memory", false)] {
            let text = format!(
                "[[nic]]\nname = \"n\"\nkind = \"soft\"\naddresses = [\"10.0.0.1/24\"]\n\
                 wire = \"{wire}\"\n"
            );
            assert_eq!(needs_tap(&config::parse("f", &text).unwrap()), needs);
        }
    }
}
