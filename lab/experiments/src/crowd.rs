//! A machine with two neighbours, guests of its file, and others that are attached beside them.

use crate::lane::running::Running;
use crate::ns::Namespace;
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

/// Name of every guest's interface.
const IFNAME: &str = "gw0";
/// Where nobody listens: who sends there is told so.
const DEAD_PORT: u16 = 9;
/// How long an answer from there may take.
const ANSWER: Duration = Duration::from_millis(200);

/// The address of a neighbour.
fn neighbour(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 79, 255, number))
}

fn guest_name(number: usize) -> String {
    format!("guest{number}")
}

/// The address of a guest.
fn guest_address(number: usize) -> IpAddr {
    let [third, fourth] = [number / 250, number % 250 + 1].map(|part| part as u8);
    IpAddr::V4(Ipv4Addr::new(10, 79, third, fourth))
}

fn guest_cidr(number: usize) -> String {
    format!("{}/16", guest_address(number))
}

/// A guest as an application in it sees it: its namespace and its address.
pub(crate) type GuestHome = (PathBuf, IpAddr);

/// Milliseconds since then.
pub(crate) fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// Where a guest is attached: a network namespace, and the list of its interfaces.
pub(crate) struct GuestPlace {
    namespace: netns::Namespace,
    interfaces: File,
}

impl GuestPlace {
    /// A new one.
    ///
    /// # Errors
    /// [`Failure::CannotRun`] if this user may not make namespaces.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let no_namespace =
            |error| Failure::CannotRun(format!("cannot make a network namespace: {error}"));
        let namespace = netns::Namespace::new().map_err(no_namespace)?;
        // Opened inside, it tells of this namespace from wherever it is read.
        let interfaces = namespace.enter(|| File::open("/proc/thread-self/net/dev"))??;
        Ok(Self {
            namespace,
            interfaces,
        })
    }

    /// Whether a guest's interface is there.
    ///
    /// # Errors
    /// The list cannot be read.
    pub(crate) fn has_interface(&self) -> anyhow::Result<bool> {
        let mut text = [0; 4096];
        let count = self.interfaces.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(text.get(..count).unwrap_or_default());
        Ok(text.contains(IFNAME))
    }

    /// Whether the first neighbour answers from here.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub(crate) fn reaches_neighbour(&self) -> anyhow::Result<bool> {
        let ask = || -> std::io::Result<usize> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.set_read_timeout(Some(ANSWER))?;
            socket.connect((neighbour(1), DEAD_PORT))?;
            socket.send(&[0])?;
            socket.recv(&mut [0])
        };
        // There is no other answer than the neighbour's own kernel's, that nobody listens.
        let answer = self.namespace.enter(ask)?;
        Ok(answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused))
    }

    /// The guest of this number that lives here, as its applications have it.
    pub(crate) fn home(&self, number: usize) -> GuestHome {
        (self.namespace.path(), guest_address(number))
    }

    /// The guest of this number that lives here, as the control socket has it.
    fn guest(&self, number: usize) -> Value {
        json!({ "name": guest_name(number), "vif": [{
            "endpoint": "tap",
            "netns": self.namespace.path(),
            "ifname": IFNAME,
            "addresses": [guest_cidr(number)],
        }]})
    }
}

/// The machine.
pub(crate) struct Crowd {
    machine: Running,
    neighbours: [Namespace; 2],
}

impl Crowd {
    /// Starts it with nobody but its two neighbours. `what` begins its name, `driver` are keys of
    /// the driver domain.
    ///
    /// # Errors
    /// If namespaces cannot be made, or it does not start.
    pub(crate) fn start(what: &str, driver: &str) -> anyhow::Result<Self> {
        let neighbours = [Namespace::new("neighbour")?, Namespace::new("neighbour")?];
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

    /// How many interfaces there are where the neighbours are.
    ///
    /// # Errors
    /// If that cannot be read.
    pub(crate) fn interfaces(&self) -> anyhow::Result<usize> {
        let mut count = 0;
        for neighbour in &self.neighbours {
            let path = format!("/proc/{}/net/dev", neighbour.pid());
            // Two lines are the table's head.
            count += std::fs::read_to_string(path)?.lines().skip(2).count();
        }
        Ok(count)
    }

    /// What runs.
    pub(crate) fn machine(&self) -> &Running {
        &self.machine
    }

    /// The neighbours.
    pub(crate) fn neighbours(&self) -> [GuestHome; 2] {
        let [first, second] = &self.neighbours;
        [(first.path(), neighbour(1)), (second.path(), neighbour(2))]
    }

    /// Attaches the guest of this number; how many milliseconds that took.
    ///
    /// # Errors
    /// If it does not come.
    pub(crate) fn attach(&self, number: usize, home: &GuestPlace) -> anyhow::Result<f64> {
        let began = Instant::now();
        self.machine.attach(home.guest(number))?;
        Ok(ms_since(began))
    }

    /// Detaches it; how many milliseconds that took.
    ///
    /// # Errors
    /// If it is not there, or something of it stays.
    pub(crate) fn detach(&self, number: usize) -> anyhow::Result<f64> {
        let began = Instant::now();
        self.machine.detach(&guest_name(number))?;
        Ok(ms_since(began))
    }

    /// What the machine says of it; none: it is not there.
    ///
    /// # Errors
    /// If nobody answers.
    pub(crate) fn guest(&self, number: usize) -> anyhow::Result<Option<DomainStatus>> {
        let (name, status) = (guest_name(number), self.machine.status()?);
        let mut domains = status.domains.into_iter();
        Ok(domains.find(|domain| domain.name == name))
    }

    /// Ends the machine; the namespaces of the neighbours end with it.
    ///
    /// # Errors
    /// It does not end in time.
    pub(crate) fn down(self) -> anyhow::Result<()> {
        self.machine.down()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn guests_have_addresses_of_their_own() {
        let mut all: BTreeSet<String> = (0..256).map(guest_cidr).collect();
        assert!(all.iter().all(|cidr| cidr.parse::<config::Cidr>().is_ok()));
        all.extend([1, 2].map(|number| format!("{}/16", neighbour(number))));
        assert_eq!(all.len(), 258);
    }
}
