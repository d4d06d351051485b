//! Lanes through the kernel alone: a veth pair, or two of them and a bridge between.

use super::cores::Cores;
use super::ends::{Ends, GUEST, IFNAME, PREFIX, steer};
use super::path::Path;
use super::reading::Reading;
use super::{Lane, Loads, NIC_KERNEL, WIRE_KERNEL};
use crate::kernel::need;
use crate::ns::Namespace;
use crate::plan::Gro;
use figures::Failure;
use figures::measure::{Part, kernel_threads, pin_process};
use std::net::IpAddr;

/// The kernel's part.
#[derive(Default)]
struct KernelPath {
    /// The namespace of the bridge, if there is one: it lasts as long as the lane.
    _middle: Option<Namespace>,
    /// NAPI's threads at the wire's far end.
    far: Vec<i32>,
    /// And everywhere else.
    near: Vec<i32>,
}

/// Where segments of TCP pass whole, and frames are merged.
#[derive(Clone, Copy, Debug)]
pub struct Offloaded {
    /// Where frames are merged.
    pub gro: Gro,
    /// Whether the wire carries segments whole (segmentation offload), not frames of the MTU.
    pub segments: bool,
}

impl Offloaded {
    /// Returns a path whose wire carries frames of the MTU.
    #[must_use]
    pub const fn frames(gro: Gro) -> Self {
        let segments = false;
        Self { gro, segments }
    }
}

/// Sets up two veth pairs with a bridge between. Unless the wire carries segments whole, offloads
/// that would put more than the MTU on it are off. A bridge that merges at its ports hands what it
/// merged to the guest whole, and takes segments from it, as a guest's TAP does.
///
/// # Errors
/// [`figures::Failure::CannotRun`] if `ip` or `ethtool` is not installed; otherwise if the kernel
/// refuses.
pub fn bridge_lane(of: Offloaded, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    need(&["ip", "ethtool"])?;
    let ends = Ends::new()?;
    let mut near = Vec::new();
    let path = KernelPath {
        _middle: Some(bridge(&ends, of, cores, &mut near)?),
        far: Vec::new(),
        near,
    };
    through(ends, path, of, cores, loads)
}

/// Sets up so many wires, each a veth pair to an interface of the guest's of its own, as a machine
/// with so many NICs has them.
///
/// # Errors
/// As [`bridge_lane`].
pub fn veth_lane(wires: u32, gro: Gro, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    need(&["ip", "ethtool"])?;
    of_pairs(Ends::of(wires, 1)?, gro, cores, loads)
}

fn of_pairs(mut ends: Ends, gro: Gro, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    let guest = ends.guest.pid();
    pair(&mut ends.wire, IFNAME, guest, IFNAME)?;
    for (number, wire) in (1..).zip(&mut ends.further_wires) {
        pair(wire, IFNAME, guest, &nic(number))?;
    }
    let frames = Offloaded::frames(gro);
    through(ends, KernelPath::default(), frames, cores, loads)
}

/// The guest's interface to a further wire.
fn nic(number: usize) -> String {
    format!("{IFNAME}-{number}")
}

/// The lane whose ends' interfaces are there.
fn through(
    mut ends: Ends,
    mut path: KernelPath,
    Offloaded { gro, segments }: Offloaded,
    cores: Cores,
    loads: &Loads,
) -> anyhow::Result<Lane> {
    let wires: Vec<IpAddr> = ends.wires().map(|(_, address)| address).collect();
    let each = std::iter::once(&mut ends.wire).chain(&mut ends.further_wires);
    for (end, address) in each.zip(&wires) {
        let near = Near {
            core: cores.wire,
            whole: segments,
        };
        path.far.extend(interface(end, IFNAME, near, gro)?);
        let cidr = format!("{address}/{PREFIX}");
        end.run(&["ip", "addr", "add", &cidr, "dev", IFNAME])?;
    }
    let guest = &mut ends.guest;
    let near = Near {
        core: cores.guest,
        whole: gro.at_ports(),
    };
    path.near.extend(interface(guest, IFNAME, near, gro)?);
    let cidr = format!("{GUEST}/{PREFIX}");
    guest.run(&["ip", "addr", "add", &cidr, "dev", IFNAME])?;
    let source = GUEST.to_string();
    for (number, address) in wires.iter().enumerate().skip(1) {
        let name = nic(number);
        path.near.extend(interface(guest, &name, near, gro)?);
        // The network is behind the first one; each other wire has one station.
        let to = address.to_string();
        guest.run(&["ip", "route", "add", &to, "dev", &name, "src", &source])?;
    }
    let remark = (!gro.threaded() && gro != Gro::Rps)
        .then(|| "`sender` contains softirqs of everybody: NAPI is not threaded".to_owned());
    Ok(Lane::new(ends, Box::new(path), cores, loads)?.remarked(remark))
}

/// What an interface of an end's is like.
#[derive(Clone, Copy)]
struct Near {
    /// Where what it brings is handled.
    core: usize,
    /// Whether segments leave by it whole.
    whole: bool,
}

/// Has an end's interface merge as it is to, and up; the threads that look at it.
fn interface(
    end: &mut Namespace,
    name: &str,
    Near { core, whole }: Near,
    gro: Gro,
) -> anyhow::Result<Vec<i32>> {
    let merges = !matches!(gro, Gro::Off | Gro::Rps);
    offloads(end, name, if merges { "on" } else { "off" }, whole)?;
    end.run(&["ip", "link", "set", name, "mtu", "1500", "up"])?;
    if gro == Gro::Rps {
        steer(end, name, core)?;
    }
    match gro.threaded() {
        true => thread(end, name, core),
        false => Ok(Vec::new()),
    }
}

/// Has a kernel thread on `core` look at what comes to an interface; which one.
fn thread(ns: &mut Namespace, name: &str, core: usize) -> anyhow::Result<Vec<i32>> {
    let threads = || kernel_threads(&[&format!("napi/{name}-")]);
    let before = threads();
    ns.write(&format!("/sys/class/net/{name}/threaded"), "1")?;
    let mut new = threads();
    new.retain(|thread| !before.contains(thread));
    if new.is_empty() {
        // Their time could not be counted.
        anyhow::bail!(Failure::CannotRun(
            "the kernel's NAPI threads cannot be seen from this PID namespace".to_owned()
        ));
    }
    for &thread in &new {
        pin_process(thread, core)?;
    }
    Ok(new)
}

/// A veth pair from `near`, where `ip` runs, to the namespace of process `far`.
fn pair(near: &mut Namespace, name: &str, far: i32, far_name: &str) -> anyhow::Result<()> {
    let far = far.to_string();
    let tail = ["type", "veth", "peer", "name", far_name, "netns", &far];
    let mut words = vec!["ip", "link", "add", name];
    words.extend(tail);
    near.run(&words).map(drop)
}

/// A bridge in a namespace of its own, with a port to each end; the threads of its ports.
fn bridge(
    ends: &Ends,
    Offloaded { gro, segments }: Offloaded,
    cores: Cores,
    threads: &mut Vec<i32>,
) -> anyhow::Result<Namespace> {
    let mut middle = Namespace::new("bridge namespace")?;
    middle.run(&["ip", "link", "add", "br0", "type", "bridge"])?;
    middle.run(&["ip", "link", "set", "br0", "up"])?;
    for (port, end) in [("wire", &ends.wire), ("guest", &ends.guest)] {
        pair(&mut middle, port, end.pid(), IFNAME)?;
        let on = if gro.at_ports() { "on" } else { "off" };
        let whole = match port {
            "wire" => segments,
            _ => gro.at_ports(),
        };
        offloads(&mut middle, port, on, whole)?;
        middle.run(&["ip", "link", "set", port, "master", "br0", "up"])?;
        if gro == Gro::InNapi {
            threads.extend(thread(&mut middle, port, cores.guest)?);
        }
    }
    Ok(middle)
}

/// Whether an interface merges what comes; unless it takes segments `whole`, no frame above the MTU
/// leaves by it.
fn offloads(ns: &mut Namespace, name: &str, gro: &str, whole: bool) -> anyhow::Result<()> {
    let segments = if whole { "on" } else { "off" };
    ns.run(&[
        "ethtool", "-K", name, "tso", segments, "gso", segments, "gro", gro,
    ])?;
    if whole {
        return Ok(());
    }
    // Not every kernel has it.
    let _absent = ns.run(&["ethtool", "-K", name, "tx-udp-segmentation", "off"]);
    Ok(())
}

impl Path for KernelPath {
    fn parts(&self) -> Vec<(Part, Vec<i32>)> {
        vec![
            (WIRE_KERNEL, self.far.clone()),
            (NIC_KERNEL, self.near.clone()),
        ]
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        Ok(Reading::default())
    }
}
