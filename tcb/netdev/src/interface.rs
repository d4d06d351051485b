//! Settings common to all kinds of interfaces: a checked specification, the namespace, addresses,
//! and errors that name the step.

use crate::error::NetError;
use crate::netlink::Netlink;
use crate::{netns, overlap};
use abi::machine::{Ipv6Settings, Route, Tap as TapSpec};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum length of an interface's name, in bytes.
pub const NAME_MAX: usize = 15;
/// Smallest accepted MTU: IPv4's minimum.
pub const MTU_MIN: u32 = 68;
/// Largest accepted MTU: a TAP's maximum.
pub const MTU_MAX: u32 = 65_521;

/// Runs `work` in a namespace; in the caller's namespace if `netns` is `None`.
pub(crate) fn in_namespace<T: Send>(
    netns: Option<&str>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NetError> {
    match netns {
        Some(name) => netns::in_netns(netns::path(name), work),
        None => Ok(work()),
    }
}

/// Parsed addresses and routes of an interface.
pub(crate) struct InterfaceNetwork {
    addresses: Vec<(IpAddr, u8)>,
    routes: Vec<Route>,
}

impl InterfaceNetwork {
    /// Returns the addresses, with the lengths of their prefixes.
    pub(crate) fn addresses(&self) -> &[(IpAddr, u8)] {
        &self.addresses
    }

    pub(crate) fn of(spec: &TapSpec) -> Result<Self, NetError> {
        let addresses = spec.addresses.iter().map(|text| parse_address(text));
        let gateway = spec.gateway.as_ref().map(|text| {
            text.parse()
                .map_err(|_| NetError::Address { text: text.clone() })
        });
        let default = gateway.transpose()?.map(default_route);
        Ok(Self {
            addresses: addresses.collect::<Result<_, _>>()?,
            routes: default.into_iter().chain(spec.routes.clone()).collect(),
        })
    }
}

/// Returns the default route via a gateway.
fn default_route(via: IpAddr) -> Route {
    Route {
        to: match via {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        },
        prefix: 0,
        via: Some(via),
    }
}

/// Checks the parts of a specification that need no request to the kernel.
pub(crate) fn check(spec: &TapSpec) -> Result<(), NetError> {
    let name = spec.ifname.as_bytes();
    let plain = |b: &u8| b.is_ascii_graphic() && !matches!(*b, b'/' | b'%' | b':');
    if name.is_empty()
        || name.len() > NAME_MAX
        || !name.iter().all(plain)
        || spec.ifname == "."
        || spec.ifname == ".."
    {
        return Err(NetError::Name {
            interface: spec.ifname.clone(),
        });
    }
    if !(MTU_MIN..=MTU_MAX).contains(&spec.mtu) {
        return Err(NetError::Mtu {
            interface: spec.ifname.clone(),
            mtu: spec.mtu,
        });
    }
    if spec.tso && !spec.checksum || spec.checksum && !spec.vnet_header {
        return Err(NetError::Offloads {
            interface: spec.ifname.clone(),
        });
    }
    if spec.queues > 0 && spec.shares > 0 {
        return Err(NetError::Shares {
            interface: spec.ifname.clone(),
        });
    }
    Ok(())
}

/// Parses an address with a prefix length.
fn parse_address(text: &str) -> Result<(IpAddr, u8), NetError> {
    let wrong = || NetError::Address {
        text: text.to_owned(),
    };
    let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    if prefix > most {
        Err(wrong())
    } else {
        Ok((address, prefix))
    }
}

/// Returns a function that makes the error of a step on an interface.
pub(crate) fn failed(
    spec: &TapSpec,
    step: &'static str,
    hint: &'static str,
) -> impl FnOnce(io::Error) -> NetError {
    let (interface, namespace) = (spec.ifname.clone(), namespace(spec.netns.as_deref()));
    move |error| NetError::Step {
        interface,
        namespace,
        step,
        error,
        hint,
    }
}

/// Configures an interface of the calling thread's namespace according to its specification, and
/// brings it up.
pub(crate) fn configure(spec: &TapSpec, network: &InterfaceNetwork) -> Result<(), NetError> {
    let failed = |step, hint| failed(spec, step, hint);
    let mut netlink = Netlink::open().map_err(failed("configured", "rtnetlink is needed"))?;
    let index = netlink
        .index(&spec.ifname)
        .map_err(failed("found", "it was just created"))?;
    netlink
        .set_link(index, spec.mac, spec.mtu, spec.tx_queue)
        .map_err(failed(
            "configured",
            "check its MAC, MTU and transmit queue",
        ))?;
    if !spec.allow_overlap {
        let found = overlap::find_here(&netlink, index, &network.addresses).map_err(failed(
            "compared with others' networks",
            "rtnetlink is needed",
        ))?;
        if let Some(overlap) = found {
            return Err(NetError::Overlap {
                interface: spec.ifname.clone(),
                namespace: namespace(spec.netns.as_deref()),
                overlap,
            });
        }
    }
    let ipv6 = spec.ipv6.unwrap_or(Ipv6Settings::NO_SOLICITATION);
    set_ipv6(&spec.ifname, &ipv6, &network.addresses);
    netlink
        .set_up(index)
        .map_err(failed("brought up", "see the kernel's log"))?;
    // A reused persistent interface still has its addresses and routes.
    let is_kept =
        |error: &io::Error| spec.persistent.is_some() && error.raw_os_error() == Some(libc::EEXIST);
    let or_kept = |done: io::Result<()>| match done {
        Err(error) if is_kept(&error) => Ok(()),
        done => done,
    };
    let detect = ipv6.accept_dad.is_none_or(|dad| dad > 0);
    for &address in &network.addresses {
        or_kept(netlink.add_address(index, address, detect)).map_err(failed(
            "given its addresses",
            "is IPv6 disabled in the namespace, or an address given twice?",
        ))?;
    }
    for route in &network.routes {
        or_kept(netlink.add_route(index, route)).map_err(failed(
            "given its routes",
            "a gateway must lie in one of its networks, and of a network there can be only one \
             route",
        ))?;
    }
    Ok(())
}

/// Writes an interface's IPv6 settings. Ignores settings that do not exist (a kernel without IPv6).
/// In a namespace with disabled IPv6, enables IPv6 only for an interface with IPv6 addresses.
fn set_ipv6(ifname: &str, ipv6: &Ipv6Settings, addresses: &[(IpAddr, u8)]) {
    let has_ipv6 = addresses.iter().any(|(address, _)| address.is_ipv6());
    let settings = [
        ("accept_dad", ipv6.accept_dad),
        ("router_solicitations", ipv6.router_solicitations),
        ("accept_ra", ipv6.accept_ra),
        ("disable_ipv6", has_ipv6.then_some(0)),
    ];
    for (key, value) in settings {
        if let Some(value) = value {
            let file = format!("/proc/sys/net/ipv6/conf/{ifname}/{key}");
            let _ = fs::write(file, value.to_string());
        }
    }
}

/// Returns the name of the namespace for messages.
pub(crate) fn namespace(netns: Option<&str>) -> String {
    netns.unwrap_or("its own").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(ifname: &str) -> TapSpec {
        TapSpec {
            ifname: ifname.to_owned(),
            mtu: 1500,
            ..TapSpec::default()
        }
    }

    #[test]
    fn names_the_kernel_would_alter_are_rejected() {
        for bad in [
            "",
            "a-name-of-16-byt",
            "with/slash",
            "tap%d",
            "a:b",
            "a b",
            ".",
            "..",
        ] {
            assert!(
                matches!(check(&spec(bad)), Err(NetError::Name { .. })),
                "{bad}"
            );
        }
        assert!(check(&spec("a-name-of-15-by")).is_ok());
    }

    #[test]
    fn offloads_depend_on_each_other() {
        let mut tap = TapSpec {
            checksum: true,
            ..spec("t")
        };
        assert!(matches!(check(&tap), Err(NetError::Offloads { .. })));
        tap.vnet_header = true;
        assert!(check(&tap).is_ok());
        tap = TapSpec {
            tso: true,
            vnet_header: true,
            ..spec("t")
        };
        assert!(matches!(check(&tap), Err(NetError::Offloads { .. })));
    }

    #[test]
    fn queues_are_dedicated_or_shared() {
        let tap = |queues, shares| TapSpec {
            queues,
            shares,
            ..spec("t")
        };
        assert!(matches!(check(&tap(1, 1)), Err(NetError::Shares { .. })));
        assert!(check(&tap(1, 0)).is_ok() && check(&tap(0, 1)).is_ok());
    }

    #[test]
    fn mtu_has_limits() {
        for (mtu, right) in [
            (0, false),
            (67, false),
            (68, true),
            (65_521, true),
            (65_522, false),
        ] {
            assert_eq!(check(&TapSpec { mtu, ..spec("t") }).is_ok(), right, "{mtu}");
        }
    }

    #[test]
    fn addresses_have_a_prefix_of_their_kind() {
        assert!(parse_address("10.0.0.1/32").is_ok());
        assert!(parse_address("fd00::1/128").is_ok());
        for bad in [
            "10.0.0.1",
            "10.0.0.1/33",
            "fd00::1/129",
            "x/8",
            "10.0.0.1/-1",
            "",
        ] {
            assert!(
                matches!(parse_address(bad), Err(NetError::Address { .. })),
                "{bad}"
            );
        }
    }
}
