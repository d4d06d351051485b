//! Two namespaces with an address each, and the path between them.

use crate::forwarder::{Forwarder, ForwarderSpec, tap_end_with_segments};
use crate::kernel::require_programs;
use crate::lane::running::{Running, unique_name};
use crate::ns::NamedNamespace;
use abi::machine::{Tap, Uplink};
use figures::Failure;
use serde::Deserialize;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

/// Interface name at both ends.
const IFNAME: &str = "gw0";
/// Address of the near end, which is behind the wire if the path has one.
pub(super) const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
/// Address of the far end: a guest or a container.
pub(super) const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 2));

/// The path between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum UplinkPath {
    /// A wire, a bridge that aggregates at its port, a container.
    Bridge,
    /// Like `Bridge`, aggregating on threads of the ports.
    BridgeNapi,
    /// Two containers on a bridge, which exchange whole segments.
    Containers,
    /// A wire, the bridge that aggregates on threads, a machine with an uplink, a guest.
    Uplink,
    /// Like `Uplink`, with a dedicated queue for the guest.
    UplinkVmq,
    /// Like `Uplink`, with one process that forwards segments between two TAPs instead of a
    /// machine.
    Forwarder,
    /// Two guests.
    Guests,
    /// The host and a guest.
    Host,
}

impl UplinkPath {
    /// Returns whether the near end is behind a wire, which carries MTU-sized frames.
    pub(super) const fn has_wire(self) -> bool {
        match self {
            Self::Bridge | Self::BridgeNapi | Self::Uplink | Self::UplinkVmq | Self::Forwarder => {
                true
            }
            Self::Containers | Self::Guests | Self::Host => false,
        }
    }
}

/// Both ends, and the resources of the path between them.
pub(super) struct UplinkEnds {
    pub(super) near: NamedNamespace,
    pub(super) far: NamedNamespace,
    machine: Option<Running>,
    _forwarder: Option<Forwarder>,
    _bridge: Option<NamedNamespace>,
}

impl UplinkEnds {
    /// Sets up a path.
    ///
    /// # Errors
    /// Returns [`Failure::CannotRun`] if `ip` or `ethtool` is not installed, or this user may not
    /// create namespaces; and another error if the kernel rejects a setting, or the machine does
    /// not start.
    pub(super) fn of(between: UplinkPath) -> anyhow::Result<Self> {
        require_programs(&["ip", "ethtool"])?;
        let mut near = NamedNamespace::new("near namespace")?;
        let mut far = NamedNamespace::new("far namespace")?;
        let mut bridge = None;
        match between {
            UplinkPath::Guests | UplinkPath::Host => {}
            UplinkPath::Containers => {
                let mut middle = new_bridge()?;
                port(&mut middle, "near", &mut near, Wiring::Whole, NEAR)?;
                port(&mut middle, "far", &mut far, Wiring::Whole, FAR)?;
                bridge = Some(middle);
            }
            UplinkPath::Bridge
            | UplinkPath::BridgeNapi
            | UplinkPath::Uplink
            | UplinkPath::UplinkVmq
            | UplinkPath::Forwarder => {
                let threads = between != UplinkPath::Bridge;
                let mut middle = new_bridge()?;
                port(
                    &mut middle,
                    "near",
                    &mut near,
                    Wiring::Wire { threads },
                    NEAR,
                )?;
                if let UplinkPath::Bridge | UplinkPath::BridgeNapi = between {
                    port(&mut middle, "far", &mut far, Wiring::Whole, FAR)?;
                }
                bridge = Some(middle);
            }
        }
        let forwarder = match (between, &bridge) {
            (UplinkPath::Forwarder, Some(bridge)) => Some(forwarder(bridge, &far)?),
            _ => None,
        };
        let machine = match config(between, &near, &far, bridge.as_ref()) {
            Some(text) => {
                let mut config = config::parse("uplink", &text)
                    .map_err(|problems| Failure::Failed(problems.to_string()))?;
                config.name = unique_name("uplink");
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

    /// Stops the machine, if the path has one, and removes the namespaces.
    ///
    /// # Errors
    /// Returns an error if the machine does not stop in time.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.machine.map_or(Ok(()), Running::down)
    }
}

/// Attachment of an interface to a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wiring {
    /// Through a wire, which carries MTU-sized frames with checksums. Both of its ends aggregate.
    Wire { threads: bool },
    /// Directly; segments are passed whole.
    Whole,
}

fn new_bridge() -> anyhow::Result<NamedNamespace> {
    let mut middle = NamedNamespace::new("bridge namespace")?;
    middle.run(&["ip", "link", "add", "br0", "type", "bridge"])?;
    middle.run(&["ip", "link", "set", "br0", "up"])?;
    Ok(middle)
}

/// Creates a veth pair from port `name` of the bridge in `middle` to `end`, and assigns the address
/// to its end.
fn port(
    middle: &mut NamedNamespace,
    name: &str,
    end: &mut NamedNamespace,
    wiring: Wiring,
    address: IpAddr,
) -> anyhow::Result<()> {
    let pid = end.pid().to_string();
    let pair = ["type", "veth", "peer", "name", IFNAME, "netns", &pid];
    middle.run(&[&["ip", "link", "add", name][..], &pair].concat())?;
    if let Wiring::Wire { .. } = wiring {
        for (side, ifname) in [(&mut *end, IFNAME), (&mut *middle, name)] {
            // GRO can verify and keep a checksum only if the sender has filled it in.
            for off in ["tso", "gso", "tx"] {
                side.run(&["ethtool", "-K", ifname, off, "off"])?;
            }
            side.run(&["ethtool", "-K", ifname, "gro", "on"])?;
        }
    }
    middle.run(&["ip", "link", "set", name, "master", "br0", "up"])?;
    end.run(&["ip", "addr", "add", &format!("{address}/24"), "dev", IFNAME])?;
    end.run(&["ip", "link", "set", IFNAME, "mtu", "1500", "up"])?;
    // An interface has a NAPI thread only while it is up and aggregates.
    if wiring == (Wiring::Wire { threads: true }) {
        for (side, ifname) in [(end, IFNAME), (middle, name)] {
            side.write(&format!("/sys/class/net/{ifname}/threaded"), "1")?;
        }
    }
    Ok(())
}

/// Starts the forwarder between a TAP that is the bridge's other port and a TAP at the far end.
fn forwarder(bridge: &NamedNamespace, far: &NamedNamespace) -> anyhow::Result<Forwarder> {
    let port = tap_end_with_segments(IFNAME, &bridge.path(), None);
    let port = Tap {
        uplink: Some(Uplink::Bridge("br0".to_owned())),
        ..port
    };
    let end = tap_end_with_segments(IFNAME, &far.path(), Some(format!("{FAR}/24")));
    Forwarder::start(&ForwarderSpec {
        taps: [port, end],
        cpu: None,
    })
}

/// Returns the machine's configuration file.
fn config(
    between: UplinkPath,
    near: &NamedNamespace,
    far: &NamedNamespace,
    bridge: Option<&NamedNamespace>,
) -> Option<String> {
    let place = |namespace: &NamedNamespace, address: Option<IpAddr>| {
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
        UplinkPath::Bridge
        | UplinkPath::BridgeNapi
        | UplinkPath::Containers
        | UplinkPath::Forwarder => None,
        UplinkPath::Uplink => Some(uplink("")),
        UplinkPath::UplinkVmq => Some(uplink("queues = \"vmq\"\n")),
        UplinkPath::Guests => {
            let near = guest("near", &place(near, Some(NEAR)));
            Some(format!("{near}{far}"))
        }
        UplinkPath::Host => {
            let near = place(near, Some(NEAR));
            Some(format!(
                "[[nic]]\nname = \"host\"\nkind = \"local\"\n{near}{far}"
            ))
        }
    }
}
