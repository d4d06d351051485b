//! Both ends of a lane: namespaces, and the addresses in them.

use super::cores::Cores;
use crate::kernel::need;
use crate::ns::Namespace;
use crate::plan::Faults;
use std::net::{IpAddr, Ipv4Addr};

/// Name of the interface at both ends of a lane.
pub const IFNAME: &str = "gw0";
/// The wire's address.
pub const WIRE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// The guest's address; further guests have those after it.
pub const GUEST: IpAddr = guest_address(0);

const fn guest_address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2 + number))
}

/// Addresses of further wires begin here, behind those of all guests.
const FURTHER_WIRES: u8 = 200;

/// Bits of the network's prefix.
pub const PREFIX: u8 = 24;

/// What is to be said of a lane whose driver domain (or forwarder) writes to the wire's TAP.
pub const WIRE_INSIDE: &str =
    "`driver` contains the wire's own TCP, which a write to the wire's TAP runs";

/// Has what arrives at an end's interface handled on `core`: receive packet steering.
///
/// # Errors
/// If this user may not.
pub(super) fn steer(end: &mut Namespace, name: &str, core: usize) -> anyhow::Result<()> {
    // Groups of 32 CPUs, the last first.
    let mut mask = format!("{:x}", 1u32 << (core % 32));
    for _ in 0..core / 32 {
        mask.push_str(",00000000");
    }
    let mut queue = |number| {
        let file = format!("/sys/class/net/{name}/queues/rx-{number}/rps_cpus");
        end.write(&file, &mask)
    };
    queue(0)?;
    // As many queues as there are.
    let _further = (1..).take_while(|&number| queue(number).is_ok()).count();
    Ok(())
}

/// Rules of netfilter's that spoil what passes the wire's end. What is lost on its way out must not
/// be told to TCP, as a `drop` would be: it goes to the loopback device, which throws it away.
fn spoiling(faults: Faults) -> String {
    let Faults {
        loss_ppm,
        reorder_ppm,
    } = faults;
    let one_of = |ppm| format!("ip protocol tcp numgen random mod 1000000 < {ppm}");
    let (lost, late) = (one_of(loss_ppm), one_of(reorder_ppm));
    let was_late = "meta mark 0x6c617465";
    [
        "add table netdev wire".to_owned(),
        hook("out", "egress", IFNAME),
        format!("add rule netdev wire out {was_late} accept"),
        format!("add rule netdev wire out {lost} fwd to lo"),
        format!("add rule netdev wire out {late} fwd to late0"),
        hook("late", "ingress", "late1"),
        format!("add rule netdev wire late meta mark set 0x6c617465 fwd to {IFNAME}"),
        hook("in", "ingress", IFNAME),
        format!("add rule netdev wire in {lost} drop"),
    ]
    .join("; ")
}

/// A chain of rules.
fn hook(name: &str, at: &str, device: &str) -> String {
    format!("add chain netdev wire {name} {{ type filter hook {at} device {device} priority 0; }}")
}

/// The namespaces at both ends.
#[derive(Debug)]
pub struct Ends {
    /// Behind the wire.
    pub wire: Namespace,
    /// Behind further wires.
    pub further_wires: Vec<Namespace>,
    /// Behind the guest.
    pub guest: Namespace,
    /// Behind further guests.
    pub further: Vec<Namespace>,
}

impl Ends {
    /// Two new namespaces.
    ///
    /// # Errors
    /// If this user may not make them.
    pub fn new() -> anyhow::Result<Self> {
        Self::of(1, 1)
    }

    /// New namespaces of so many wires and so many guests, at least one of each.
    ///
    /// # Errors
    /// As [`Ends::new`].
    pub fn of(wires: u32, guests: u32) -> anyhow::Result<Self> {
        let further_wires = (1..wires).map(|_| Namespace::new("wire namespace"));
        let further = (1..guests).map(|_| Namespace::new("guest namespace"));
        Ok(Self {
            wire: Namespace::new("wire namespace")?,
            further_wires: further_wires.collect::<Result<_, _>>()?,
            guest: Namespace::new("guest namespace")?,
            further: further.collect::<Result<_, _>>()?,
        })
    }

    /// Has what arrives at the wire's end handled on the wire's core (receive packet steering), as
    /// on another machine, not by who writes to the wire.
    ///
    /// # Errors
    /// In words what that means for the lane's figures, where this user may not.
    pub fn wire_apart(&mut self, cores: Cores) -> Result<(), String> {
        self.each_wire(|wire| steer(wire, IFNAME, cores.wire))
            .map_err(|error| format!("{WIRE_INSIDE} ({error:#})"))
    }

    fn each_wire(
        &mut self,
        with: impl FnMut(&mut Namespace) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut all = std::iter::once(&mut self.wire).chain(&mut self.further_wires);
        all.try_for_each(with)
    }

    /// From now on this becomes of TCP packets at the wire's end. Connections that are made later
    /// send packet by packet.
    ///
    /// # Errors
    /// [`figures::Failure::CannotRun`] if `ip` or `nft` is not installed; if the kernel lacks what
    /// they ask for.
    pub(super) fn spoil(&mut self, faults: Faults) -> anyhow::Result<()> {
        need(&["ip", "nft"])?;
        self.each_wire(|wire| {
            let mut run = |words: &str| {
                let words: Vec<&str> = words.split(' ').collect();
                wire.run(&words)
            };
            run(&format!("ip link set {IFNAME} gso_max_segs 1"))?;
            // What is overtaken goes through one more pair, whose other end is looked at a little
            // later.
            run("ip link add late0 type veth peer name late1")?;
            for late in ["late0", "late1"] {
                run(&format!("ip link set {late} up"))?;
            }
            wire.run(&["nft", &spoiling(faults)]).map(drop)
        })
    }

    /// Has the guests' kernels acknowledge at once what comes from the wire.
    ///
    /// # Errors
    /// If `ip` is not installed, or refuses.
    pub(super) fn quick_ack(&mut self) -> anyhow::Result<()> {
        let network = format!("10.77.0.0/{PREFIX}");
        let guests = std::iter::once(&mut self.guest).chain(&mut self.further);
        for (guest, number) in guests.zip(0..) {
            let source = guest_address(number).to_string();
            let words = ["ip", "route", "replace", &network, "dev", IFNAME];
            let how = ["src", &source, "quickack", "1"];
            guest.run(&[&words[..], &how].concat())?;
        }
        Ok(())
    }

    /// The wires' namespaces, and the addresses in them.
    pub fn wires(&self) -> impl Iterator<Item = (&Namespace, IpAddr)> {
        let address = |number| IpAddr::V4(Ipv4Addr::new(10, 77, 0, FURTHER_WIRES + number));
        let further = (1..).zip(&self.further_wires);
        let further = further.map(move |(number, wire)| (wire, address(number)));
        std::iter::once((&self.wire, WIRE)).chain(further)
    }

    /// The guests' namespaces, and the addresses in them.
    pub fn guests(&self) -> impl Iterator<Item = (&Namespace, IpAddr)> {
        let all = std::iter::once(&self.guest).chain(&self.further);
        (0..).zip(all).map(|(n, guest)| (guest, guest_address(n)))
    }
}
