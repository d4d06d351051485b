//! Two namespaces with an address each, and what lies between.

use crate::forwarder::{Forwarder, ForwarderSpec, side_with_segments};
use crate::kernel::need;
use crate::lane::running::{Running, fresh_name};
use crate::ns::Namespace;
use abi::machine::{Tap, Uplink};
use figures::Failure;
use serde::Deserialize;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

/// Name of the interface at both ends.
const IFNAME: &str = "gw0";
/// Who sends.
const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
/// Who receives.
pub(super) const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2));

/// What lies between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Middle {
    /// A wire, a bridge that merges at its port, a container.
    Bridge,
    /// The same, merging on threads of the ports.
    BridgeNapi,
    /// Two containers on a bridge, which leave segments to each other.
    Containers,
    /// A wire, the bridge that merges on threads, a machine with an uplink, a guest.
    Uplink,
    /// The same with a queue of the guest's own.
    UplinkVmq,
    /// The same with one process, which passes segments on between two TAPs, instead of a machine.
    Forwarder,
    /// Two guests.
    Guests,
    /// The host and a guest.
    Host,
}

/// Both ends, and what keeps the middle there.
pub(super) struct Sides {
    pub(super) near: Namespace,
    pub(super) far: Namespace,
    machine: Option<Running>,
    _forwarder: Option<Forwarder>,
    _bridge: Option<Namespace>,
}

impl Sides {
    /// Sets it up.
    ///
    /// # Errors
    /// [`Failure::CannotRun`] if `ip` or `ethtool` is not installed, or this user may not make
    /// namespaces; otherwise if the kernel refuses, or the machine does not start.
    pub(super) fn of(between: Middle) -> anyhow::Result<Self> {
        need(&["ip", "ethtool"])?;
        let mut near = Namespace::new("near namespace")?;
        let mut far = Namespace::new("far namespace")?;
        let mut bridge = None;
        match between {
            Middle::Guests | Middle::Host => {}
            Middle::Containers => {
                let mut middle = new_bridge()?;
                port(&mut middle, "near", &mut near, Wiring::Whole, NEAR)?;
                port(&mut middle, "far", &mut far, Wiring::Whole, FAR)?;
                bridge = Some(middle);
            }
            Middle::Bridge
            | Middle::BridgeNapi
            | Middle::Uplink
            | Middle::UplinkVmq
            | Middle::Forwarder => {
                let threads = between != Middle::Bridge;
                let mut middle = new_bridge()?;
                port(
                    &mut middle,
                    "near",
                    &mut near,
                    Wiring::Wire { threads },
                    NEAR,
                )?;
                if let Middle::Bridge | Middle::BridgeNapi = between {
                    port(&mut middle, "far", &mut far, Wiring::Whole, FAR)?;
                }
                bridge = Some(middle);
            }
        }
        let forwarder = match (between, &bridge) {
            (Middle::Forwarder, Some(bridge)) => Some(forwarder(bridge, &far)?),
            _ => None,
        };
        let machine = match config(between, &near, &far, bridge.as_ref()) {
            Some(text) => {
                let mut config = config::parse("uplink", &text)
                    .map_err(|problems| Failure::Failed(problems.to_string()))?;
                config.name = fresh_name("uplink");
                Some(Running::start(&config)?)
            }
            None => None,
        };
        Ok(Self {
            near,
            far,
            machine,
            _forwarder: forwarder,
            _bridge: bridge,
        })
    }

    /// Ends the machine, if there is one; the namespaces end with this.
    ///
    /// # Errors
    /// The machine does not end in time.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.machine.map_or(Ok(()), Running::down)
    }
}

/// How an interface is joined to a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wiring {
    /// By a wire: frames of the MTU with their checksums, which the bridge's port merges.
    Wire { threads: bool },
    /// Segments pass whole.
    Whole,
}

fn new_bridge() -> anyhow::Result<Namespace> {
    let mut middle = Namespace::new("bridge namespace")?;
    middle.run(&["ip", "link", "add", "br0", "type", "bridge"])?;
    middle.run(&["ip", "link", "set", "br0", "up"])?;
    Ok(middle)
}

/// A veth pair from port `name` of the bridge in `middle` to `end`, where it has an address.
fn port(
    middle: &mut Namespace,
    name: &str,
    end: &mut Namespace,
    wiring: Wiring,
    address: IpAddr,
) -> anyhow::Result<()> {
    let pid = end.pid().to_string();
    let pair = ["type", "veth", "peer", "name", IFNAME, "netns", &pid];
    middle.run(&[&["ip", "link", "add", name][..], &pair].concat())?;
    if let Wiring::Wire { .. } = wiring {
        for off in ["tso", "gso"] {
            end.run(&["ethtool", "-K", IFNAME, off, "off"])?;
        }
        // A transmit checksum that is filled in is one that GRO can check and keep.
        end.run(&["ethtool", "-K", IFNAME, "tx", "off"])?;
        middle.run(&["ethtool", "-K", name, "gro", "on"])?;
    }
    middle.run(&["ip", "link", "set", name, "master", "br0", "up"])?;
    end.run(&["ip", "addr", "add", &format!("{address}/24"), "dev", IFNAME])?;
    end.run(&["ip", "link", "set", IFNAME, "mtu", "1500", "up"])?;
    // A port that is up and merges has what a thread can be of.
    if wiring == (Wiring::Wire { threads: true }) {
        middle.write(&format!("/sys/class/net/{name}/threaded"), "1")?;
    }
    Ok(())
}

/// One process between a TAP that is the bridge's other port, and one at the far end.
fn forwarder(bridge: &Namespace, far: &Namespace) -> anyhow::Result<Forwarder> {
    let port = side_with_segments(IFNAME, &bridge.path(), None);
    let port = Tap {
        uplink: Some(Uplink::Bridge("br0".to_owned())),
        ..port
    };
    let end = side_with_segments(IFNAME, &far.path(), Some(format!("{FAR}/24")));
    Forwarder::start(&ForwarderSpec {
        taps: [port, end],
        cpu: None,
    })
}

/// The file of the machine, as its user would write it.
fn config(
    between: Middle,
    near: &Namespace,
    far: &Namespace,
    bridge: Option<&Namespace>,
) -> Option<String> {
    let place = |namespace: &Namespace, address: Option<IpAddr>| {
        let mut keys = format!(
            "ifname = \"{IFNAME}\"\nnetns = \"{}\"\n",
            namespace.path().display()
        );
        if let Some(address) = address {
            let _ = writeln!(keys, "addresses = [\"{address}/24\"]");
        }
        keys
    };
    let guest = |name: &str, keys: &str| {
        format!("[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"tap\"\n{keys}")
    };
    let far = guest("far", &place(far, Some(FAR)));
    let uplink = |queues: &str| {
        let keys = bridge.map(|bridge| place(bridge, None)).unwrap_or_default();
        format!("[[nic]]\nname = \"uplink\"\nkind = \"tap\"\nuplink = \"br0\"\n{queues}{keys}{far}")
    };
    match between {
        Middle::Bridge | Middle::BridgeNapi | Middle::Containers | Middle::Forwarder => None,
        Middle::Uplink => Some(uplink("")),
        Middle::UplinkVmq => Some(uplink("queues = \"vmq\"\n")),
        Middle::Guests => {
            let near = guest("near", &place(near, Some(NEAR)));
            Some(format!("{near}{far}"))
        }
        Middle::Host => {
            let near = place(near, Some(NEAR));
            Some(format!(
                "[[nic]]\nname = \"host\"\nkind = \"local\"\n{near}{far}"
            ))
        }
    }
}
