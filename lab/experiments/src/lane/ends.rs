//! The ends of a lane: namespaces and their addresses.

use super::cores::Cores;
use crate::kernel::require_programs;
use crate::ns::NamedNamespace;
use crate::plan::WireFaults;
use std::net::{IpAddr, Ipv4Addr};

/// Interface name at both ends of a lane.
pub const IFNAME: &str = "gw0";
/// Address of the wire's end.
pub const WIRE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// Address of the first guest. Further guests have the next ones.
pub const GUEST: IpAddr = guest_address(0);

const fn guest_address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2 + number))
}

/// First host number of further wires. It is above those of all guests.
const FURTHER_WIRES: u8 = 200;

/// Prefix length of the network.
pub const PREFIX: u8 = 24;

/// Remark on lanes whose driver domain (or forwarder) writes to the wire's TAP.
pub const WIRE_INSIDE: &str =
    "`driver` includes the wire's TCP stack, which runs in writes to the wire's TAP";

/// Remark on lanes whose NIC has a device domain.
pub const DEVICE_BESIDE: &str =
    "`nic_device` represents hardware and is in no sum of the machine under test";

/// Steers the processing of packets that an end's interface receives to `core` (receive packet
/// steering).
///
/// # Errors
/// Returns an error if this user has no permission.
pub(super) fn steer(end: &mut NamedNamespace, name: &str, core: usize) -> anyhow::Result<()> {
    // The mask has groups of 32 CPUs, the last group first.
    let mut mask = format!("{:x}", 1u32 << (core % 32));
    for _ in 0..core / 32 {
        mask.push_str(",00000000");
    }
    let mut queue = |number| {
        let file = format!("/sys/class/net/{name}/queues/rx-{number}/rps_cpus");
        end.write(&file, &mask)
    };
    queue(0)?;
    // Set every existing queue.
    let _further = (1..).take_while(|&number| queue(number).is_ok()).count();
    Ok(())
}

/// Returns netfilter rules that drop and reorder packets at the wire's end. TCP would notice a
/// `drop` of an outgoing packet, so the rules forward such packets to the loopback device, which
/// discards them.
fn fault_rules(faults: WireFaults) -> String {
    let WireFaults {
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

/// Returns the definition of a chain.
fn hook(name: &str, at: &str, device: &str) -> String {
    format!("add chain netdev wire {name} {{ type filter hook {at} device {device} priority 0; }}")
}

/// The namespaces at both ends.
#[derive(Debug)]
pub struct LaneEnds {
    /// The wire's end.
    pub wire: NamedNamespace,
    /// The ends of further wires.
    pub further_wires: Vec<NamedNamespace>,
    /// The guest's end.
    pub guest: NamedNamespace,
    /// The ends of further guests.
    pub further: Vec<NamedNamespace>,
    /// True if the guest's end is a virtual machine, not its namespace.
    pub guest_is_vm: bool,
}

impl LaneEnds {
    /// Creates two namespaces.
    ///
    /// # Errors
    /// Returns an error if this user has no permission.
    pub fn new() -> anyhow::Result<Self> {
        Self::of(1, 1)
    }

    /// Creates namespaces for `wires` wires and `guests` guests, at least one of each.
    ///
    /// # Errors
    /// See [`LaneEnds::new`].
    pub fn of(wires: u32, guests: u32) -> anyhow::Result<Self> {
        let further_wires = (1..wires).map(|_| NamedNamespace::new("wire namespace"));
        let further = (1..guests).map(|_| NamedNamespace::new("guest namespace"));
        Ok(Self {
            wire: NamedNamespace::new("wire namespace")?,
            further_wires: further_wires.collect::<Result<_, _>>()?,
            guest: NamedNamespace::new("guest namespace")?,
            further: further.collect::<Result<_, _>>()?,
            guest_is_vm: false,
        })
    }

    /// Steers packets that the wire's end receives to the wire's core instead of the writer's core
    /// (receive packet steering), as on a separate machine.
    ///
    /// # Errors
    /// Returns an error if this user may not change the setting. The message states the effect on
    /// the lane's figures.
    pub fn steer_wire(&mut self, cores: Cores) -> Result<(), String> {
        self.each_wire(|wire| steer(wire, IFNAME, cores.wire))
            .map_err(|error| format!("{WIRE_INSIDE} ({error:#})"))
    }

    /// Runs `with` for each wire's namespace.
    ///
    /// # Errors
    /// Returns the first error of `with`.
    pub(super) fn each_wire(
        &mut self,
        with: impl FnMut(&mut NamedNamespace) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut all = std::iter::once(&mut self.wire).chain(&mut self.further_wires);
        all.try_for_each(with)
    }

    /// Applies these faults to TCP packets at the wire's end. New connections send each packet
    /// separately.
    ///
    /// # Errors
    /// Returns [`figures::Failure::CannotRun`] if `ip` or `nft` is not installed, and another error
    /// if the kernel does not support the rules.
    pub(super) fn add_faults(&mut self, faults: WireFaults) -> anyhow::Result<()> {
        require_programs(&["ip", "nft"])?;
        self.each_wire(|wire| {
            let mut run = |words: &str| {
                let words: Vec<&str> = words.split(' ').collect();
                wire.run(&words)
            };
            run(&format!("ip link set {IFNAME} gso_max_segs 1"))?;
            // Delayed packets pass through another veth pair, whose other end is processed slightly
            // later.
            run("ip link add late0 type veth peer name late1")?;
            for late in ["late0", "late1"] {
                run(&format!("ip link set {late} up"))?;
            }
            wire.run(&["nft", &fault_rules(faults)]).map(drop)
        })
    }

    /// Makes the guests' kernels acknowledge segments from the wire immediately.
    ///
    /// # Errors
    /// Returns an error if `ip` is not installed, or fails.
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

    /// Returns the wires' namespaces and addresses.
    pub fn wires(&self) -> impl Iterator<Item = (&NamedNamespace, IpAddr)> {
        let address = |number| IpAddr::V4(Ipv4Addr::new(10, 77, 0, FURTHER_WIRES + number));
        let further = (1..).zip(&self.further_wires);
        let further = further.map(move |(number, wire)| (wire, address(number)));
        std::iter::once((&self.wire, WIRE)).chain(further)
    }

    /// Returns the guests' namespaces and addresses.
    pub fn guests(&self) -> impl Iterator<Item = (&NamedNamespace, IpAddr)> {
        let all = std::iter::once(&self.guest).chain(&self.further);
        (0..).zip(all).map(|(n, guest)| (guest, guest_address(n)))
    }
}
