//! How a TAP joins the network of its namespace: as a port of a bridge, or behind address
//! translation. What is set up goes with [`Uplink`], but for a port of a bridge, which goes with
//! the TAP.

use crate::error::SetupError;
use crate::interface::{Network, failed, in_place, namespace};
use crate::netlink::Netlink;
use crate::netns::{self, Identity};
use crate::nftables::Table;
use abi::machine::{Nat, Tap as TapSpec, Transport, Uplink as UplinkSpec};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

/// Forwarding of IPv4 and IPv6 packets between interfaces.
const FORWARDING: [&str; 2] = [
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/net/ipv6/conf/all/forwarding",
];

/// Address translation that was set up. It ends when this and all copies of its descriptor are
/// closed; forwarding that was off before is off again when this is dropped, and all others that
/// need it in this namespace.
#[derive(Debug)]
pub struct Uplink {
    table: OwnedFd,
    forwarding: Forwarding,
}

/// What an uplink needs to be switched on that was off before there was any.
#[derive(Debug)]
pub(crate) struct Forwarding {
    netns: Option<String>,
    /// The namespace itself: it may have several names, and its name may become another's.
    of: Option<Identity>,
    settings: Vec<&'static str>,
}

/// The settings of every [`Forwarding`] that there is, and their namespaces.
static NEEDED: Mutex<Vec<(Option<Identity>, &'static str)>> = Mutex::new(Vec::new());

fn needed() -> MutexGuard<'static, Vec<(Option<Identity>, &'static str)>> {
    NEEDED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Uplink {
    /// The descriptor that keeps the rules in the kernel. A duplicate of it keeps them as well.
    #[must_use]
    pub fn kept(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }

    /// Settings of the system that were switched on for it, or for others before.
    #[must_use]
    pub fn switched_on(&self) -> &[&'static str] {
        &self.forwarding.settings
    }

    /// What another process has set up for `spec`, in the namespace `of` if not in its own: what
    /// that has kept, and which settings it has switched on.
    #[must_use]
    pub fn adopt(
        spec: &TapSpec,
        of: Option<Identity>,
        kept: OwnedFd,
        switched_on: &[String],
    ) -> Self {
        Self {
            table: kept,
            forwarding: Forwarding::adopt(spec, of, switched_on),
        }
    }
}

impl Forwarding {
    /// What another process has switched on, in the namespace `of` if not in the caller's.
    pub(crate) fn adopt(spec: &TapSpec, of: Option<Identity>, switched_on: &[String]) -> Self {
        let of_them = |setting: &&str| switched_on.iter().any(|on| on == setting);
        let settings: Vec<_> = FORWARDING.into_iter().filter(of_them).collect();
        let of = of.or_else(|| netns::identity(netns::OWN));
        needed().extend(settings.iter().map(|setting| (of, *setting)));
        Self {
            netns: spec.netns.clone(),
            of,
            settings,
        }
    }

    /// Switches a setting on, in the calling thread's namespace.
    fn switch_on(&mut self, setting: &'static str) -> io::Result<()> {
        let mut needed = needed();
        let this = (self.of, setting);
        if fs::read_to_string(setting)?.trim() == "0" {
            fs::write(setting, "1")?;
        } else if !needed.contains(&this) {
            // It was on before, and stays.
            return Ok(());
        }
        needed.push(this);
        self.settings.push(setting);
        Ok(())
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let mut needed = needed();
        let mut unneeded: Vec<&str> = Vec::new();
        for setting in &self.settings {
            let is_it = |(of, on): &(_, _)| *of == self.of && on == setting;
            if let Some(at) = needed.iter().position(is_it) {
                needed.swap_remove(at);
            }
            unneeded.extend((!needed.iter().any(is_it)).then_some(setting));
        }
        // If this fails, or another has the name, the namespace is about to end, and its forwarding
        // with it.
        let switch_off = || {
            let is_it = netns::identity(netns::OWN) == self.of;
            let unneeded = unneeded.iter().filter(|_| is_it);
            unneeded.for_each(|setting| drop(fs::write(setting, "0")))
        };
        let _ = in_place(self.netns.as_deref(), switch_off);
    }
}

/// Joins a TAP of the calling thread's namespace, which is up, to what its specification says.
pub(crate) fn join(spec: &TapSpec, network: &Network) -> Result<Option<Uplink>, SetupError> {
    match &spec.uplink {
        None => Ok(None),
        Some(UplinkSpec::Bridge(bridge)) => join_bridge(spec, bridge).map(|()| None),
        Some(UplinkSpec::Nat(nat)) => translate(spec, network, nat).map(Some),
    }
}

fn join_bridge(spec: &TapSpec, bridge: &str) -> Result<(), SetupError> {
    let failed = |step, hint| failed(spec, step, hint);
    let mut netlink = Netlink::open().map_err(failed("joined", "rtnetlink is needed"))?;
    let no_bridge = |error| SetupError::NoInterface {
        interface: bridge.to_owned(),
        namespace: namespace(spec.netns.as_deref()),
        error,
    };
    let master = netlink.index(bridge).map_err(no_bridge)?;
    let index = netlink
        .index(&spec.ifname)
        .map_err(failed("found", "it was just created"))?;
    netlink.set_master(index, master).map_err(failed(
        "made a port of the bridge of its `uplink`",
        "is that a bridge? `ip link add NAME type bridge` makes one",
    ))
}

fn translate(spec: &TapSpec, network: &Network, nat: &Nat) -> Result<Uplink, SetupError> {
    let mut table = Table::new(&format!("grantway-{}", spec.ifname));
    for &(address, prefix) in network.addresses() {
        table.masquerade(address, prefix, &spec.ifname);
    }
    for forward in &nat.forward {
        let transport = match forward.transport {
            Transport::Tcp => libc::IPPROTO_TCP,
            Transport::Udp => libc::IPPROTO_UDP,
        };
        table.forward(transport as u8, forward.port, forward.to, &spec.ifname);
    }
    let table = table.install().map_err(failed(
        spec,
        "given address translation",
        "it needs CAP_NET_ADMIN, nf_tables with NAT and Linux 5.12; a table of its name is \
         another machine's (`nft list tables`)",
    ))?;
    let mut uplink = Uplink {
        table,
        forwarding: Forwarding::adopt(spec, None, &[]),
    };
    let is = |wanted: fn(&IpAddr) -> bool| network.addresses().iter().any(|(ip, _)| wanted(ip));
    let wanted = [is(IpAddr::is_ipv4), is(IpAddr::is_ipv6)];
    for (setting, _) in FORWARDING.into_iter().zip(wanted).filter(|(_, is)| *is) {
        uplink.forwarding.switch_on(setting).map_err(failed(
            spec,
            "given a forwarding system",
            "packets must be forwarded between interfaces (net.ipv4.ip_forward, \
             net.ipv6.conf.all.forwarding): switch it on by hand",
        ))?;
    }
    Ok(uplink)
}
