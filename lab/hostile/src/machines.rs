//! The machines of a run: innocents in pairs, and beside them an attacker or a busy domain.

use abi::machine::{Machine, Program};
use anyhow::{Context, Result};
use config::Config;
use netdev::netns::Namespace;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

/// Innocent guests.
pub(crate) const INNOCENTS: usize = 16;
/// Frames that a busy domain sends: full ones, as fast as they are taken.
const FRAME: u32 = 1514;

/// What kind of domain the attacker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A guest of the innocents' driver domain.
    Guest,
    /// A driver domain with guests of its own.
    Driver,
}

/// What the domain in that place does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Temper {
    /// As much as it may, by the rules.
    Busy,
    /// Whatever harms.
    Hostile,
}

/// A machine of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) role: Role,
    pub(crate) temper: Temper,
}

/// The address of innocent guest `n`.
pub(crate) fn address(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n as u8 + 1)
}

pub(crate) fn is_innocent(name: &str) -> bool {
    name == "driver" || name.starts_with("innocent")
}

pub(crate) fn is_attacker(name: &str) -> bool {
    (name.starts_with("attacker") || name.starts_with("busy")) && !name.ends_with("-sink")
}

impl Scene {
    /// The whole machine; each innocent has a TAP in its place.
    pub(crate) fn machine(self, places: &[Namespace]) -> Result<Machine> {
        let mut text = "[machine]\nname = \"hostile\"\n".to_owned();
        for (n, place) in places.iter().enumerate() {
            write!(
                text,
                "[[guest]]\nname = \"innocent-{n}\"\n[[guest.vif]]\nendpoint = \"tap\"\n\
                 ifname = \"net\"\nnetns = \"{}\"\naddresses = [\"{}/24\"]\n",
                place.path().display(),
                address(n)
            )?;
        }
        if self.role == Role::Guest {
            text += &pair(&self.name());
        }
        let mut machine = built(&text)?;
        if self.role == Role::Driver {
            self.add_driver(&mut machine)?;
        }
        Ok(machine)
    }

    /// What the domain in the attacker's place is called; hostile ones by what they attack.
    fn name(self) -> String {
        let role = match self.role {
            Role::Guest => "guest",
            Role::Driver => "driver",
        };
        match self.temper {
            Temper::Busy => format!("busy-{role}"),
            Temper::Hostile => format!("attacker-{role}"),
        }
    }

    /// A second driver domain, whose guests are its own, beside the first.
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

/// A guest that sends frames to another, `NAME-sink`, as fast as they are taken.
fn pair(name: &str) -> String {
    let sink = "02:00:00:00:99:01";
    format!(
        "[[guest]]\nname = \"{name}-sink\"\n[[guest.vif]]\nmac = \"{sink}\"\nendpoint = \"sink\"\n\
         [[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"source\"\nto = \"{sink}\"\n\
         size = {FRAME}\n"
    )
}

fn built(text: &str) -> Result<Machine> {
    let config: Config = config::parse("hostile.toml", text).context("the machine")?;
    config.machine().context("the machine")
}
