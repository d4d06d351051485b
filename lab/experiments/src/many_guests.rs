//! A machine with two neighbours (guests of its file) and many attached guests.

use crate::lane::running::Running;
use crate::ns::NamedNamespace;
use abi::machine::DomainStatus;
use figures::Failure;
use netdev::netns;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interface name of every guest.
const IFNAME: &str = "gw0";
/// A port without a listener. The neighbour's kernel answers with an ICMP error.
const CLOSED_PORT: u16 = 9;
/// Timeout for the neighbour's answer.
const REPLY_TIMEOUT: Duration = Duration::from_millis(200);

/// Returns the address of a neighbour.
fn neighbour(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 79, 255, number))
}

fn guest_name(number: usize) -> String {
    format!("guest{number}")
}

/// Returns the address of a guest.
fn guest_address(number: usize) -> IpAddr {
    let [third, fourth] = [number / 250, number % 250 + 1].map(|part| part as u8);
    IpAddr::V4(Ipv4Addr::new(10, 79, third, fourth))
}

fn guest_cidr(number: usize) -> String {
    format!("{}/16", guest_address(number))
}

/// Namespace path and address of a guest, as its applications use them.
pub(crate) type GuestNamespace = (PathBuf, IpAddr);

/// Returns the milliseconds since `began`.
pub(crate) fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// A network namespace to which a guest can be attached, and the list of its interfaces.
pub(crate) struct GuestPlace {
    namespace: netns::Namespace,
    interfaces: File,
}

impl GuestPlace {
    /// Creates a network namespace.
    ///
    /// # Errors
    /// Returns [`Failure::CannotRun`] if this user may not create namespaces.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let no_namespace =
            |error| Failure::CannotRun(format!("cannot create a network namespace: {error}"));
        let namespace = netns::Namespace::new().map_err(no_namespace)?;
        // The open file lists the interfaces of this namespace even if its reader is in another
        // one.
        let interfaces = namespace.enter(|| File::open("/proc/thread-self/net/dev"))??;
        Ok(Self {
            namespace,
            interfaces,
        })
    }

    /// Returns whether the guest's interface exists.
    ///
    /// # Errors
    /// Returns an error if the list cannot be read.
    pub(crate) fn has_interface(&self) -> anyhow::Result<bool> {
        let mut text = [0; 4096];
        let count = self.interfaces.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(text.get(..count).unwrap_or_default());
        Ok(text.contains(IFNAME))
    }

    /// Returns whether the first neighbour is reachable from here.
    ///
    /// # Errors
    /// Returns an error if the namespace cannot be entered.
    pub(crate) fn reaches_neighbour(&self) -> anyhow::Result<bool> {
        let ask = || -> std::io::Result<usize> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
            socket.connect((neighbour(1), CLOSED_PORT))?;
            socket.send(&[0])?;
            socket.recv(&mut [0])
        };
        // Only the neighbour's kernel can report that the port has no listener.
        let answer = self.namespace.enter(ask)?;
        Ok(answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused))
    }

    /// Returns the namespace path and address of the guest `number` in this namespace.
    pub(crate) fn guest_namespace(&self, number: usize) -> GuestNamespace {
        (self.namespace.path(), guest_address(number))
    }

    /// Returns the guest `number` in this namespace, in the form that the control socket accepts.
    fn guest(&self, number: usize) -> Value {
        json!({ "name": guest_name(number), "vif": [{
            "endpoint": "tap",
            "netns": self.namespace.path(),
            "ifname": IFNAME,
            "addresses": [guest_cidr(number)],
        }]})
    }
}

/// A running machine with its neighbours.
pub(crate) struct ManyGuests {
    machine: Running,
    neighbours: [NamedNamespace; 2],
}

impl ManyGuests {
    /// Starts a machine with two neighbours. `what` is the prefix of its name, `driver` holds keys
    /// of the driver domain.
    ///
    /// # Errors
    /// Returns an error if namespaces cannot be created, or the machine does not start.
    pub(crate) fn start(what: &str, driver: &str) -> anyhow::Result<Self> {
        let neighbours = [
            NamedNamespace::new("neighbour")?,
            NamedNamespace::new("neighbour")?,
        ];
        let mut text = format!("[driver]\n{driver}\n");
        for (number, namespace) in (1..).zip(&neighbours) {
            let (path, address) = (namespace.path(), neighbour(number));
            write!(
                text,
                "[[guest]]\nname = \"neighbour{number}\"\n[[guest.vif]]\nendpoint = \"tap\"\n\
                 ifname = \"{IFNAME}\"\nnetns = \"{}\"\naddresses = [\"{address}/16\"]\n",
                path.display()
            )?;
        }
        Ok(Self {
            machine: Running::start_live(what, text)?,
            neighbours,
        })
    }

    /// Returns the number of interfaces in the neighbours' namespaces.
    ///
    /// # Errors
    /// Returns an error if they cannot be read.
    pub(crate) fn interfaces(&self) -> anyhow::Result<usize> {
        let mut count = 0;
        for neighbour in &self.neighbours {
            let path = format!("/proc/{}/net/dev", neighbour.pid());
            // The table has two header lines.
            count += std::fs::read_to_string(path)?.lines().skip(2).count();
        }
        Ok(count)
    }

    /// Returns the machine.
    pub(crate) fn machine(&self) -> &Running {
        &self.machine
    }

    /// Returns the neighbours.
    pub(crate) fn neighbours(&self) -> [GuestNamespace; 2] {
        let [first, second] = &self.neighbours;
        [(first.path(), neighbour(1)), (second.path(), neighbour(2))]
    }

    /// Attaches the guest `number` and returns the duration in milliseconds.
    ///
    /// # Errors
    /// Returns an error if the guest cannot be attached.
    pub(crate) fn attach(&self, number: usize, place: &GuestPlace) -> anyhow::Result<f64> {
        let began = Instant::now();
        self.machine.attach(place.guest(number))?;
        Ok(ms_since(began))
    }

    /// Detaches the guest `number` and returns the duration in milliseconds.
    ///
    /// # Errors
    /// Returns an error if the guest does not exist, or part of it remains.
    pub(crate) fn detach(&self, number: usize) -> anyhow::Result<f64> {
        let began = Instant::now();
        self.machine.detach(&guest_name(number))?;
        Ok(ms_since(began))
    }

    /// Returns the status of the guest `number`, or `None` if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the manager does not answer.
    pub(crate) fn guest(&self, number: usize) -> anyhow::Result<Option<DomainStatus>> {
        let (name, status) = (guest_name(number), self.machine.status()?);
        let mut domains = status.domains.into_iter();
        Ok(domains.find(|domain| domain.name == name))
    }

    /// Stops the machine and removes the namespaces of the neighbours.
    ///
    /// # Errors
    /// Returns an error if it does not stop in time.
    pub(crate) fn down(self) -> anyhow::Result<()> {
        self.machine.down()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn guests_have_distinct_addresses() {
        let mut all: BTreeSet<String> = (0..256).map(guest_cidr).collect();
        assert!(all.iter().all(|cidr| cidr.parse::<config::Cidr>().is_ok()));
        all.extend([1, 2].map(|number| format!("{}/16", neighbour(number))));
        assert_eq!(all.len(), 258);
    }
}
