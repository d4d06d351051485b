//! Lanes through the kernel alone: a veth pair, or two of them and a bridge between.

use super::cores::Cores;
use super::ends::{Ends, GUEST, IFNAME, PREFIX, WIRE, steer};
use super::path::Path;
use super::reading::Reading;
use super::{Lane, Loads, NIC_KERNEL, WIRE_KERNEL};
use crate::kernel::need;
use crate::ns::Namespace;
use crate::plan::Gro;
use figures::Failure;
use figures::measure::{Part, kernel_threads, pin_process};

/// The kernel's part.
struct KernelPath {
    /// The namespace of the bridge, if there is one.
    _middle: Option<Namespace>,
    /// NAPI's threads at the wire's far end.
    far: Vec<i32>,
    /// And everywhere else.
    near: Vec<i32>,
}

/// Sets up a veth pair, with a bridge if `bridged`. Offloads that would put more than the MTU on
/// the wire are off. A bridge that merges at its ports hands what it merged to the guest whole, and
/// takes segments from it, as a guest's TAP does.
///
/// # Errors
/// [`figures::Failure::CannotRun`] if `ip` or `ethtool` is not installed; otherwise if the kernel
/// refuses.
pub fn lane(bridged: bool, gro: Gro, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    need(&["ip", "ethtool"])?;
    let mut ends = Ends::new()?;
    let (mut far, mut near) = (Vec::new(), Vec::new());
    let middle = if bridged {
        Some(bridge(&ends, gro, cores, &mut near)?)
    } else {
        pair(&mut ends.wire, IFNAME, ends.guest.pid(), IFNAME)?;
        None
    };
    for (end, address, core, threads) in [
        (&mut ends.wire, WIRE, cores.wire, &mut far),
        (&mut ends.guest, GUEST, cores.guest, &mut near),
    ] {
        let merges = !matches!(gro, Gro::Off | Gro::Rps);
        let on = if merges { "on" } else { "off" };
        let whole = gro.at_ports() && address == GUEST;
        offloads(end, IFNAME, on, whole)?;
        let cidr = format!("{address}/{PREFIX}");
        end.run(&["ip", "addr", "add", &cidr, "dev", IFNAME])?;
        end.run(&["ip", "link", "set", IFNAME, "mtu", "1500", "up"])?;
        if gro.threaded() {
            threads.extend(thread(end, IFNAME, core)?);
        }
        if gro == Gro::Rps {
            steer(end, core)?;
        }
    }
    let path = KernelPath {
        _middle: middle,
        far,
        near,
    };
    let remark = (!gro.threaded() && gro != Gro::Rps)
        .then(|| "`sender` contains softirqs of everybody: NAPI is not threaded".to_owned());
    Ok(Lane::new(ends, Box::new(path), cores, loads)?.remarked(remark))
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
    gro: Gro,
    cores: Cores,
    threads: &mut Vec<i32>,
) -> anyhow::Result<Namespace> {
    let mut middle = Namespace::new("bridge namespace")?;
    middle.run(&["ip", "link", "add", "br0", "type", "bridge"])?;
    middle.run(&["ip", "link", "set", "br0", "up"])?;
    for (port, end) in [("wire", &ends.wire), ("guest", &ends.guest)] {
        pair(&mut middle, port, end.pid(), IFNAME)?;
        let on = if gro.at_ports() { "on" } else { "off" };
        offloads(&mut middle, port, on, gro.at_ports() && port == "guest")?;
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
