//! Lanes through the kernel alone: a veth pair, or two of them and a bridge between.

use super::cores::Cores;
use super::ends::{Ends, GUEST, IFNAME, PREFIX, WIRE};
use super::path::Path;
use super::reading::Reading;
use super::{Lane, Loads};
use crate::kernel::need;
use crate::ns::Namespace;
use crate::plan::Gro;
use figures::measure::{Part, kernel_threads, pin_process};

/// The kernel's part.
struct KernelPath {
    /// The namespace of the bridge, if there is one.
    _middle: Option<Namespace>,
    threads: Vec<i32>,
}

/// Sets up a veth pair, with a bridge if `bridged`. Offloads that would put more than the MTU on
/// the wire are off.
///
/// # Errors
/// [`figures::Failure::CannotRun`] if `ip` or `ethtool` is not installed; otherwise if the kernel
/// refuses.
pub fn lane(bridged: bool, gro: Gro, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    need(&["ip", "ethtool"])?;
    let mut ends = Ends::new()?;
    let middle = if bridged {
        Some(bridge(&ends)?)
    } else {
        pair(&mut ends.wire, IFNAME, ends.guest.pid(), IFNAME)?;
        None
    };
    let mut threads = Vec::new();
    for (end, address, core) in [
        (&mut ends.wire, WIRE, cores.wire),
        (&mut ends.guest, GUEST, cores.guest),
    ] {
        let on = if gro == Gro::Off { "off" } else { "on" };
        quiet(end, IFNAME, on)?;
        let cidr = format!("{address}/{PREFIX}");
        end.run(&["ip", "addr", "add", &cidr, "dev", IFNAME])?;
        end.run(&["ip", "link", "set", IFNAME, "mtu", "1500", "up"])?;
        if gro == Gro::Napi {
            let before = napi_threads();
            end.write(&format!("/sys/class/net/{IFNAME}/threaded"), "1")?;
            for thread in napi_threads() {
                if !before.contains(&thread) {
                    pin_process(thread, core)?;
                    threads.push(thread);
                }
            }
        }
    }
    let path = KernelPath {
        _middle: middle,
        threads,
    };
    Lane::new(ends, Box::new(path), cores, loads)
}

fn napi_threads() -> Vec<i32> {
    kernel_threads(&[&format!("napi/{IFNAME}-")])
}

/// A veth pair from `near`, where `ip` runs, to the namespace of process `far`.
fn pair(near: &mut Namespace, name: &str, far: i32, far_name: &str) -> anyhow::Result<()> {
    let far = far.to_string();
    let tail = ["type", "veth", "peer", "name", far_name, "netns", &far];
    let mut words = vec!["ip", "link", "add", name];
    words.extend(tail);
    near.run(&words).map(drop)
}

/// A bridge in a namespace of its own, with a port to each end.
fn bridge(ends: &Ends) -> anyhow::Result<Namespace> {
    let mut middle = Namespace::new("bridge namespace")?;
    middle.run(&["ip", "link", "add", "br0", "type", "bridge"])?;
    middle.run(&["ip", "link", "set", "br0", "up"])?;
    for (port, end) in [("wire", &ends.wire), ("guest", &ends.guest)] {
        pair(&mut middle, port, end.pid(), IFNAME)?;
        quiet(&mut middle, port, "off")?;
        middle.run(&["ip", "link", "set", port, "master", "br0", "up"])?;
    }
    Ok(middle)
}

/// No frame above the MTU leaves by this interface.
fn quiet(ns: &mut Namespace, name: &str, gro: &str) -> anyhow::Result<()> {
    ns.run(&[
        "ethtool", "-K", name, "tso", "off", "gso", "off", "gro", gro,
    ])?;
    // Not every kernel has it.
    let _absent = ns.run(&["ethtool", "-K", name, "tx-udp-segmentation", "off"]);
    Ok(())
}

impl Path for KernelPath {
    fn parts(&self) -> Vec<(Part, Vec<i32>)> {
        vec![("nic_kernel", self.threads.clone())]
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        Ok(Reading::default())
    }
}
