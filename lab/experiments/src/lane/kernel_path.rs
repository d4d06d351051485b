//! Lanes through the kernel alone: one veth pair, or two with a bridge between them.

use super::cores::Cores;
use super::ends::{GUEST, IFNAME, LaneEnds, PREFIX, steer};
use super::path::Path;
use super::reading::Reading;
use super::{Lane, Loads, NIC_KERNEL, WIRE_KERNEL};
use crate::kernel::require_programs;
use crate::ns::NamedNamespace;
use crate::plan::Gro;
use figures::Failure;
use figures::measure::{CpuPart, kernel_threads, pin_process};
use std::net::IpAddr;

/// Kernel resources of a lane.
#[derive(Default)]
struct KernelPath {
    /// Namespace of the bridge. It exists as long as the lane.
    _middle: Option<NamedNamespace>,
    /// NAPI threads at the wire's far end.
    far: Vec<i32>,
    /// All other NAPI threads.
    near: Vec<i32>,
}

/// Offloads of a kernel path.
#[derive(Clone, Copy, Debug)]
pub struct Offloaded {
    /// Aggregation of received frames.
    pub gro: Gro,
    /// True if the wire carries whole segments (segmentation offload) instead of MTU-sized frames.
    pub segments: bool,
}

impl Offloaded {
    /// Returns a path whose wire carries MTU-sized frames.
    #[must_use]
    pub const fn frames(gro: Gro) -> Self {
        let segments = false;
        Self { gro, segments }
    }
}

/// Sets up two veth pairs with a bridge between them. Unless the wire carries whole segments,
/// disables offloads that would create frames above its MTU. A bridge that aggregates at its ports
/// passes whole aggregates to the guest and accepts segments from it, like a guest's TAP.
///
/// # Errors
/// Returns [`figures::Failure::CannotRun`] if `ip` or `ethtool` is not installed, and another error
/// if the kernel rejects a setting.
pub fn bridge_lane(of: Offloaded, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    require_programs(&["ip", "ethtool"])?;
    let ends = LaneEnds::new()?;
    let mut near = Vec::new();
    let path = KernelPath {
        _middle: Some(bridge(&ends, of, cores, &mut near)?),
        far: Vec::new(),
        near,
    };
    through(ends, path, of, cores, loads)
}

/// Sets up `wires` wires. Each is a veth pair to a separate interface of the guest, like the NICs
/// of a machine.
///
/// # Errors
/// See [`bridge_lane`].
pub fn veth_lane(wires: u32, gro: Gro, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    require_programs(&["ip", "ethtool"])?;
    of_pairs(LaneEnds::of(wires, 1)?, gro, cores, loads)
}

fn of_pairs(mut ends: LaneEnds, gro: Gro, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    let guest = ends.guest.pid();
    pair(&mut ends.wire, IFNAME, guest, IFNAME)?;
    for (number, wire) in (1..).zip(&mut ends.further_wires) {
        pair(wire, IFNAME, guest, &nic(number))?;
    }
    let frames = Offloaded::frames(gro);
    through(ends, KernelPath::default(), frames, cores, loads)
}

/// Returns the name of the guest's interface to a further wire.
fn nic(number: usize) -> String {
    format!("{IFNAME}-{number}")
}

/// Configures the existing interfaces of both ends and returns the lane.
fn through(
    mut ends: LaneEnds,
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
        // The first interface has the route to the network. Each other wire has one station.
        let to = address.to_string();
        guest.run(&["ip", "route", "add", &to, "dev", &name, "src", &source])?;
    }
    let remark = (!gro.threaded() && gro != Gro::Rps)
        .then(|| "`sender` includes softirqs of all processes: NAPI is not threaded".to_owned());
    Ok(Lane::new(ends, Box::new(path), cores, loads)?.with_remark(remark))
}

/// Settings of an end's interface.
#[derive(Clone, Copy)]
struct Near {
    /// Core that processes received packets.
    core: usize,
    /// True if the interface sends whole segments.
    whole: bool,
}

/// Configures an end's interface, brings it up, and returns its NAPI threads.
fn interface(
    end: &mut NamedNamespace,
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

/// Moves the processing of frames that each wire's end receives to the wire's core, as behind a
/// bridge with the same `gro`. Returns the NAPI threads.
///
/// # Errors
/// Returns an error if this user may not change the setting, or `ethtool` is not installed.
pub(super) fn set_up_wires(
    ends: &mut LaneEnds,
    cores: Cores,
    gro: Gro,
) -> anyhow::Result<Vec<i32>> {
    require_programs(&["ethtool"])?;
    let mut threads = Vec::new();
    let near = Near {
        core: cores.wire,
        whole: false,
    };
    ends.each_wire(|wire| {
        threads.extend(interface(wire, IFNAME, near, gro)?);
        Ok(())
    })?;
    Ok(threads)
}

/// Moves the NAPI processing of an interface to a kernel thread on `core`, and returns the thread.
fn thread(ns: &mut NamedNamespace, name: &str, core: usize) -> anyhow::Result<Vec<i32>> {
    let before = napi_threads(name);
    ns.write(&format!("/sys/class/net/{name}/threaded"), "1")?;
    pin_new_threads(name, &before, core)
}

/// Returns the NAPI threads of all interfaces `name`.
pub(super) fn napi_threads(name: &str) -> Vec<i32> {
    kernel_threads(&[&format!("napi/{name}-")])
}

/// Moves the NAPI threads of interfaces `name` that did not exist `before` to `core`, and returns
/// them.
///
/// # Errors
/// Returns an error if none is visible, or this user may not move it.
pub(super) fn pin_new_threads(name: &str, before: &[i32], core: usize) -> anyhow::Result<Vec<i32>> {
    let mut new = napi_threads(name);
    new.retain(|thread| !before.contains(thread));
    if new.is_empty() {
        // The CPU time of threads that are not visible cannot be counted.
        anyhow::bail!(Failure::CannotRun(
            "the kernel's NAPI threads are not visible in this PID namespace".to_owned()
        ));
    }
    for &thread in &new {
        pin_process(thread, core)?;
    }
    Ok(new)
}

/// Creates a veth pair from `near`, where `ip` runs, to the namespace of process `far`.
fn pair(near: &mut NamedNamespace, name: &str, far: i32, far_name: &str) -> anyhow::Result<()> {
    let far = far.to_string();
    let tail = ["type", "veth", "peer", "name", far_name, "netns", &far];
    let mut words = vec!["ip", "link", "add", name];
    words.extend(tail);
    near.run(&words).map(drop)
}

/// Creates a bridge in a new namespace, with a port to each end. Returns the NAPI threads of its
/// ports.
fn bridge(
    ends: &LaneEnds,
    Offloaded { gro, segments }: Offloaded,
    cores: Cores,
    threads: &mut Vec<i32>,
) -> anyhow::Result<NamedNamespace> {
    let mut middle = NamedNamespace::new("bridge namespace")?;
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

/// A bridge between a veth pair and the TAP of a virtual machine. Its ports aggregate in kernel
/// threads on the wire's core.
pub(super) struct VmBridge {
    middle: NamedNamespace,
    /// NAPI threads at the wire's far end.
    pub(super) far: Vec<i32>,
    /// All other NAPI threads.
    pub(super) near: Vec<i32>,
}

/// Creates the bridge, with a port to the wire.
///
/// # Errors
/// See [`bridge_lane`].
pub(super) fn vm_bridge(ends: &mut LaneEnds, cores: Cores) -> anyhow::Result<VmBridge> {
    require_programs(&["ip", "ethtool"])?;
    let mut middle = NamedNamespace::new("bridge namespace")?;
    middle.run(&["ip", "link", "add", "br0", "type", "bridge"])?;
    middle.run(&["ip", "link", "set", "br0", "up"])?;
    pair(&mut middle, "wire", ends.wire.pid(), IFNAME)?;
    offloads(&mut middle, "wire", "on", true)?;
    middle.run(&["ip", "link", "set", "wire", "master", "br0", "up"])?;
    let near = thread(&mut middle, "wire", cores.wire)?;
    let end = Near {
        core: cores.wire,
        whole: true,
    };
    let far = interface(&mut ends.wire, IFNAME, end, Gro::InNapi)?;
    Ok(VmBridge { middle, far, near })
}

impl VmBridge {
    /// Returns the path of its namespace.
    pub(super) fn netns(&self) -> std::path::PathBuf {
        self.middle.path()
    }

    /// Adds an interface of its namespace as a port.
    ///
    /// # Errors
    /// Returns an error if the kernel rejects the change.
    pub(super) fn with_port(mut self, name: &str) -> anyhow::Result<Self> {
        self.middle
            .run(&["ip", "link", "set", name, "master", "br0", "up"])?;
        Ok(self)
    }
}

/// Sets whether an interface aggregates received frames. Unless it sends `whole` segments, disables
/// every offload that sends frames above the MTU.
fn offloads(ns: &mut NamedNamespace, name: &str, gro: &str, whole: bool) -> anyhow::Result<()> {
    let segments = if whole { "on" } else { "off" };
    ns.run(&[
        "ethtool", "-K", name, "tso", segments, "gso", segments, "gro", gro,
    ])?;
    if whole {
        return Ok(());
    }
    // This fails on kernels without the offload.
    let _absent = ns.run(&["ethtool", "-K", name, "tx-udp-segmentation", "off"]);
    Ok(())
}

impl Path for KernelPath {
    fn parts(&self) -> Vec<(CpuPart, Vec<i32>)> {
        vec![
            (WIRE_KERNEL, self.far.clone()),
            (NIC_KERNEL, self.near.clone()),
        ]
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        Ok(Reading::default())
    }
}
