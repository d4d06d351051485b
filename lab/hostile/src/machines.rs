//! The machines of a run: pairs of innocent guests, and an attacker or a busy domain.

use abi::machine::{Machine, Program};
use anyhow::{Context, Result};
use config::Config;
use netdev::netns::Namespace;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

/// Number of innocent guests.
pub(crate) const INNOCENTS: usize = 16;
/// Port of the probes, which every innocent guest accepts.
pub(crate) const PORT: u16 = 5300;
/// Size in bytes of the frames that a busy domain sends as fast as the driver accepts them.
const FRAME: u32 = 1514;
/// The domain of the device whose queues are dedicated to guests.
const DEVICE: &str = "device-wire";
/// The innocent guest with a dedicated queue.
pub(crate) const QUEUE_USER: &str = "innocent-queue";
/// MAC of the guest that receives a busy domain's frames.
const SINK: &str = "02:00:00:00:99:01";

/// Keys of an interface with a stateful firewall and with rules for servers. As docs/firewall.md
/// advises, the rules have no `state`, so they also accept the segments of a flood.
const STATEFUL: &str = "firewall = \"stateful\"\n\
     [[guest.vif.rule]]\naction = \"allow\"\ndirection = \"to-guest\"\n\
     protocol = \"tcp\"\ndestination_ports = \"5300-29000\"\n\
     [[guest.vif.rule]]\naction = \"allow\"\ndirection = \"to-guest\"\n\
     protocol = \"udp\"\ndestination_ports = 5300\n";

/// Kind of the attacking domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttackerRole {
    /// A guest of the innocent guests' driver domain.
    Guest,
    /// A second driver domain with separate guests.
    Driver,
    /// The monitor of a virtual machine behind the innocent guests' driver domain.
    Vm,
    /// A guest that sends SYNs to an innocent guest. All guests have a stateful firewall.
    Flow,
    /// A guest with a dedicated queue. Another guest has a queue of the same device.
    Queue,
}

impl AttackerRole {
    /// All roles, in the order of a run.
    pub(crate) const ALL: [Self; 5] =
        [Self::Guest, Self::Driver, Self::Vm, Self::Flow, Self::Queue];

    /// Returns the role with this name.
    pub(crate) fn from_name(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|role| role.name() == name);
        found.with_context(|| format!("no role is named {name}"))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Driver => "driver",
            Self::Vm => "vm",
            Self::Flow => "flow",
            Self::Queue => "queue",
        }
    }
}

/// Behaviour of the attacking domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Follows the protocol and causes the maximum load.
    Busy,
    /// Attacks the other domains and the monitor.
    Hostile,
}

/// A machine of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineUnderTest {
    pub(crate) role: AttackerRole,
    pub(crate) behaviour: Behaviour,
}

/// Returns the address of innocent guest `n`.
pub(crate) fn address(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n as u8 + 1)
}

pub(crate) fn is_innocent(name: &str) -> bool {
    name == "driver" || name == DEVICE || name.starts_with("innocent")
}

pub(crate) fn is_attacker(name: &str) -> bool {
    (name.starts_with("attacker") || name.starts_with("busy")) && !name.ends_with("-sink")
}

impl MachineUnderTest {
    /// Returns the number of namespaces of a machine: one per innocent guest, and one for the guest
    /// from which the flood is sent.
    pub(crate) fn places(self) -> usize {
        INNOCENTS + usize::from(self.role == AttackerRole::Flow)
    }

    /// Returns the machine. Each guest with a namespace has a TAP in it. The monitor of a virtual
    /// machine connects to `socket`.
    pub(crate) fn machine(self, places: &[Namespace], socket: &Path) -> Result<Machine> {
        let mut text = "[machine]\nname = \"hostile\"\n".to_owned();
        let firewall = match self.role {
            AttackerRole::Flow => STATEFUL,
            _ => "",
        };
        for (n, place) in places.iter().enumerate() {
            let name = match n {
                INNOCENTS => self.name(),
                _ => format!("innocent-{n}"),
            };
            write!(
                text,
                "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"tap\"\n\
                 ifname = \"net\"\nnetns = \"{}\"\naddresses = [\"{}/24\"]\n{firewall}",
                place.path().display(),
                address(n)
            )?;
        }
        if self.role == AttackerRole::Guest {
            text += &pair(&self.name());
        }
        if self.role == AttackerRole::Vm {
            let name = self.name();
            write!(
                text,
                "[[guest]]\nname = \"{name}-sink\"\n[[guest.vif]]\nmac = \"{SINK}\"\n\
                 endpoint = \"sink\"\n[[guest]]\nname = \"{name}\"\n[[guest.vif]]\n\
                 endpoint = \"vhost-user\"\nsocket = \"{}\"\n",
                socket.display()
            )?;
        }
        if self.role == AttackerRole::Queue {
            text += &queues(&self.name());
        }
        let mut machine = built(&text)?;
        if self.role == AttackerRole::Driver {
            self.add_driver(&mut machine)?;
        }
        Ok(machine)
    }

    /// Returns the name of the attacking domain, or of the busy domain that replaces it.
    fn name(self) -> String {
        let role = self.role.name();
        match self.behaviour {
            Behaviour::Busy => format!("busy-{role}"),
            Behaviour::Hostile => format!("attacker-{role}"),
        }
    }

    /// Returns the command line of the virtual machine's monitor, or `None` if the machine has
    /// none.
    pub(crate) fn monitor(self) -> Option<[&'static str; 2]> {
        match (self.role, self.behaviour) {
            (
                AttackerRole::Guest
                | AttackerRole::Driver
                | AttackerRole::Flow
                | AttackerRole::Queue,
                _,
            ) => None,
            (AttackerRole::Vm, Behaviour::Busy) => Some(["busy", SINK]),
            (AttackerRole::Vm, Behaviour::Hostile) => Some(["hostile", "1"]),
        }
    }

    /// Adds a second driver domain with separate guests.
    fn add_driver(self, machine: &mut Machine) -> Result<()> {
        let pool = "[buffers]\nspare = 64\nrelease_threshold = 8\n";
        let mut other = built(&format!(
            "[machine]\nname = \"other\"\n{pool}{}",
            pair("victim")
        ))?;
        let name = self.name();
        for domain in &mut other.domains {
            if domain.program == Program::Driver {
                domain.name.clone_from(&name);
            }
        }
        for connection in &mut other.connections {
            connection.backend.clone_from(&name);
        }
        machine.domains.append(&mut other.domains);
        machine.connections.append(&mut other.connections);
        Ok(())
    }
}

/// Returns a guest that sends frames to a second guest, `NAME-sink`, as fast as the driver accepts
/// them.
fn pair(name: &str) -> String {
    format!(
        "[[guest]]\nname = \"{name}-sink\"\n[[guest.vif]]\nmac = \"{SINK}\"\nendpoint = \"sink\"\n\
         [[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"source\"\nto = \"{SINK}\"\n\
         size = {FRAME}\n"
    )
}

/// Returns a NIC whose station sends a stream to each of two guests with a dedicated queue:
/// [`QUEUE_USER`], and the guest `name`.
fn queues(name: &str) -> String {
    let mut text = "[driver]\ngrants = \"counted\"\n[[nic]]\nname = \"wire\"\nkind = \"soft\"\n\
         queues = \"vmq\"\nvmq_queues = 2\nrate_mbps = 1000\naddresses = [\"10.1.0.1/24\"]\n"
        .to_owned();
    let guests = [(1, QUEUE_USER), (2, name)];
    for (queue, _) in guests {
        text += &format!(
            "[[nic.app]]\nkind = \"tcp-source\"\nto = \"10.1.0.{}:{PORT}\"\nseconds = 100000\n",
            queue + 1
        );
    }
    for (queue, name) in guests {
        text += &format!(
            "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\npdev = \"wire:{queue}\"\n\
             endpoint = \"stack\"\naddresses = [\"10.1.0.{}/24\"]\n\
             [[guest.vif.app]]\nkind = \"tcp-sink\"\nport = {PORT}\n",
            queue + 1
        );
    }
    text
}

fn built(text: &str) -> Result<Machine> {
    let config: Config = config::parse("hostile.toml", text).context("the machine")?;
    config.machine().context("the machine")
}
