//! `grantway attach`, `detach` and `rules`: guests of a running machine.

use crate::output;
use abi::machine::ConfigValue;
use client::Instance;
use config::Cidr;
use serde_json::json;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use tool::Failure;

/// The guest to attach.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct AttachArgs {
    /// Name of the guest
    pub(crate) guest: String,
    /// The guest's network namespace: a name (`ip netns`), an absolute path, or the id of a process
    /// in it
    #[arg(
        long,
        value_name = "NAME|PATH|PID",
        required_unless_present_any = ["file", "vhost_user"]
    )]
    pub(crate) netns: Option<String>,
    /// Serve a virtual machine instead, through this vhost-user socket; on a machine of root, it
    /// must be below /run/grantway/vhost
    #[arg(
        long,
        value_name = "SOCKET",
        conflicts_with_all = ["netns", "file", "addresses", "network", "gateway", "ifname"]
    )]
    pub(crate) vhost_user: Option<PathBuf>,
    /// server: create the socket; client: connect to the virtual machine monitor's [default:
    /// server]
    #[arg(long, value_name = "MODE", requires = "vhost_user", value_parser = ["server", "client"])]
    pub(crate) mode: Option<String>,
    /// The user that may connect to the socket: a name or a number [default: the machine's user]
    #[arg(long, value_name = "USER", requires = "vhost_user")]
    pub(crate) owner: Option<String>,
    /// Queue pairs that the virtual machine may use, 1 to 8 [default: one for each worker of the
    /// driver domain]
    #[arg(long, value_name = "N", requires = "vhost_user")]
    pub(crate) queues: Option<u32>,
    /// An address of the guest's interface, with the prefix length of its network; can be repeated
    #[arg(long = "ip", value_name = "CIDR", conflicts_with = "file")]
    pub(crate) addresses: Vec<Cidr>,
    /// Use a free address and the gateway of this NIC's network. Without a name, use the network of
    /// the first NIC with an address, or else of the first guest with one
    #[arg(
        long,
        value_name = "NIC",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with_all = ["addresses", "file"]
    )]
    pub(crate) network: Option<String>,
    /// Accept an --ip whose network overlaps an address or route of the namespace
    #[arg(long, requires = "addresses")]
    pub(crate) allow_overlap: bool,
    /// The guest's default route [default: none, with --network the NIC's address]
    #[arg(long, value_name = "IP", conflicts_with = "file")]
    pub(crate) gateway: Option<IpAddr>,
    /// The guest's MAC, such as 02:00:00:00:05:01 [default: derived from its name]
    #[arg(long, conflicts_with = "file")]
    pub(crate) mac: Option<String>,
    /// MTU of the guest's interface, bytes, 576 to 9000 [default: 1500]
    #[arg(long, value_name = "BYTES", conflicts_with = "file")]
    pub(crate) mtu: Option<u32>,
    /// Name of the guest's interface [default: eth0]
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    pub(crate) ifname: Option<String>,
    /// Limit of traffic from the guest, megabits per second [default: unlimited]
    #[arg(long, value_name = "MBPS", conflicts_with = "file")]
    pub(crate) rate: Option<f64>,
    /// Limit of traffic to the guest, megabits per second; frames above it wait [default:
    /// unlimited]
    #[arg(long, value_name = "MBPS", conflicts_with = "file")]
    pub(crate) rate_to_guest: Option<f64>,
    /// A file with the contents of a `[[guest]]` section instead of these options: any endpoint,
    /// any number of interfaces, rules (docs/config.md)
    #[arg(
        long,
        value_name = "FILE",
        value_hint = clap::ValueHint::FilePath,
        conflicts_with = "netns"
    )]
    pub(crate) file: Option<PathBuf>,
}

impl AttachArgs {
    /// Returns the options as a section of the configuration file.
    pub(crate) fn section(&self) -> anyhow::Result<ConfigValue> {
        let mut guest = match &self.file {
            Some(file) => from_file(file)?,
            None => BTreeMap::from([("vif".to_owned(), ConfigValue::List(vec![self.vif()]))]),
        };
        guest.insert("name".to_owned(), text(&self.guest));
        Ok(ConfigValue::Section(guest))
    }

    fn vif(&self) -> ConfigValue {
        let endpoint = match self.vhost_user {
            Some(_) => "vhost-user",
            None => "tap",
        };
        let mut vif = BTreeMap::from([("endpoint".to_owned(), text(endpoint))]);
        let mut put = |key: &str, value: Option<ConfigValue>| {
            vif.extend(value.map(|value| (key.to_owned(), value)));
        };
        put(
            "netns",
            self.netns.as_deref().map(|netns| text(&place(netns))),
        );
        match self.network.as_deref() {
            Some("") => put("network", Some(ConfigValue::Flag(true))),
            Some(nic) => put("network", Some(text(nic))),
            None if self.vhost_user.is_some() => {}
            None => {
                let addresses = self.addresses.iter().map(|cidr| text(&cidr.to_string()));
                put("addresses", Some(ConfigValue::List(addresses.collect())));
            }
        }
        put(
            "gateway",
            self.gateway.map(|gateway| text(&gateway.to_string())),
        );
        let socket = self.vhost_user.as_ref();
        put("socket", socket.map(|path| text(&path.to_string_lossy())));
        put("socket_mode", self.mode.as_deref().map(text));
        put("owner", self.owner.as_deref().map(text));
        let pairs = self.queues.map(|pairs| ConfigValue::Number(pairs.into()));
        put("queue_pairs", pairs);
        let overlap = self.allow_overlap.then_some(ConfigValue::Flag(true));
        put("allow_overlap", overlap);
        put("mac", self.mac.as_deref().map(text));
        put("mtu", self.mtu.map(|mtu| ConfigValue::Number(mtu.into())));
        put("ifname", self.ifname.as_deref().map(text));
        put("rate_mbps", self.rate.map(ConfigValue::Real));
        let to_guest = self.rate_to_guest.map(ConfigValue::Real);
        put("rate_to_guest_mbps", to_guest);
        ConfigValue::Section(vif)
    }
}

/// Returns a namespace in the form of a configuration file. Converts a process id to the path of
/// that process's namespace.
fn place(netns: &str) -> String {
    match netns.parse::<u32>() {
        Ok(pid) => format!("/proc/{pid}/ns/net"),
        Err(_) => netns.to_owned(),
    }
}

fn text(text: &str) -> ConfigValue {
    ConfigValue::Text(text.to_owned())
}

fn from_file(file: &std::path::Path) -> anyhow::Result<BTreeMap<String, ConfigValue>> {
    let shown = file.display();
    let wrong = |why: String| Failure::Usage(format!("{shown}: {why}"));
    let text =
        std::fs::read_to_string(file).map_err(|error| wrong(format!("cannot read it: {error}")))?;
    let setting = match file.extension().is_some_and(|it| it == "json") {
        true => serde_json::from_str(&text).map_err(|error| error.to_string()),
        false => config::live::setting(&text),
    };
    match setting.map_err(&wrong)? {
        ConfigValue::Section(keys) => Ok(keys),
        _ => Err(wrong("it has no keys".to_owned()).into()),
    }
}

/// Executes `grantway attach`.
pub(crate) fn attach(name: &str, guest: &AttachArgs, as_json: bool) -> anyhow::Result<()> {
    let guest = guest.section()?;
    let instance = Instance::connect(name)?;
    let attached = instance.attach(guest).map_err(output::refused)?;
    for warning in &attached.warnings {
        output::warn(&format!("guest {}: {warning}", attached.domain));
    }
    if as_json {
        return output::json(&json!(attached));
    }
    let macs = attached.macs.join(", ");
    let ms = attached.took_ns as f64 / 1e6;
    output::print(&format!(
        "{} is attached ({macs}; {ms:.1} ms).\n",
        attached.domain
    ))
}

/// Executes `grantway rules`.
pub(crate) fn rules(
    name: &str,
    guest: &str,
    file: &std::path::Path,
    as_json: bool,
) -> anyhow::Result<()> {
    let mut section = from_file(file)?;
    section.insert("name".to_owned(), text(guest));
    let instance = Instance::connect(name)?;
    let changed = instance.rules(ConfigValue::Section(section));
    let changed = changed.map_err(output::refused)?;
    changed.warning.iter().for_each(|w| output::warn(w));
    if as_json {
        return output::json(&json!(changed));
    }
    let ms = changed.took_ns as f64 / 1e6;
    output::print(&format!("{guest} has the new rules ({ms:.1} ms).\n"))
}

/// Executes `grantway detach`.
pub(crate) fn detach(name: &str, guests: &[String], as_json: bool) -> anyhow::Result<()> {
    let instance = Instance::connect(name)?;
    for guest in guests {
        let detached = instance.detach(guest).map_err(output::refused)?;
        detached.warning.iter().for_each(|w| output::warn(w));
        let ms = detached.took_ns as f64 / 1e6;
        match as_json {
            true => output::json(&json!(detached))?,
            false => output::print(&format!("{guest} is detached ({ms:.1} ms).\n"))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn section(args: &[&str]) -> serde_json::Value {
        let args = ["grantway", "attach"].iter().chain(args);
        match Cli::try_parse_from(args).unwrap().command {
            Command::Attach { guest, .. } => json!(guest.section().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_become_keys_of_a_section() {
        assert_eq!(
            section(&[
                "web",
                "--netns",
                "17",
                "--ip",
                "10.0.0.2/24",
                "--mtu",
                "1400",
                "--rate-to-guest",
                "2.5"
            ]),
            json!({ "name": "web", "vif": [{
                "endpoint": "tap", "netns": "/proc/17/ns/net",
                "addresses": ["10.0.0.2/24"], "mtu": 1400, "rate_to_guest_mbps": 2.5,
            }]})
        );
        for (typed, key) in [
            (&["--network"][..], json!(true)),
            (&["--network", "lan"], json!("lan")),
        ] {
            let vif = &section(&[&["web", "--netns", "x"], typed].concat())["vif"][0];
            assert_eq!(vif["network"], key, "{vif}");
            assert!(vif["addresses"].is_null(), "{vif}");
        }
        let socket = "/run/grantway/vhost/web.sock";
        assert_eq!(
            section(&[
                "web",
                "--vhost-user",
                socket,
                "--owner",
                "libvirt-qemu",
                "--queues",
                "2"
            ]),
            json!({ "name": "web", "vif": [{
                "endpoint": "vhost-user", "socket": socket, "owner": "libvirt-qemu",
                "queue_pairs": 2,
            }]})
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("guest.toml");
        std::fs::write(&file, "restart = false\n[[vif]]\nendpoint = \"echo\"\n").unwrap();
        assert_eq!(
            section(&["web", "--file", &file.display().to_string()]),
            json!({ "name": "web", "restart": false, "vif": [{ "endpoint": "echo" }] })
        );
    }
}
