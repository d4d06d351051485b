//! Uplinks: a TAP as a port of a bridge, or behind address translation. Dropping a [`NatUplink`]
//! undoes its set-up. The kernel removes a port from its bridge with the TAP.

use crate::error::NetError;
use crate::forwarding::{self, Lock};
use crate::interface::{InterfaceNetwork, failed, in_namespace, namespace};
use crate::netlink::Netlink;
use crate::netns::{self, Identity};
use crate::nftables::{self, NftTable};
use abi::machine::{Nat, PortProtocol, Tap as TapSpec, Uplink};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An address translation. The kernel removes the rules when this value is dropped, or when the
/// descriptor and all its duplicates are closed. Dropping it also switches off the forwarding that
/// it needed, if forwarding was off before and no other machine in the namespace needs it.
#[derive(Debug)]
pub struct NatUplink {
    netns: Option<String>,
    /// The namespace's identity. A namespace may have several names, and a name may be reused for
    /// another namespace.
    of: Option<Identity>,
    name: String,
    table: OwnedFd,
    switched_on: Vec<String>,
}

impl NatUplink {
    /// Returns the descriptor that keeps the rules in the kernel. A duplicate of it keeps them as
    /// well.
    #[must_use]
    pub fn adoption_fd(&self) -> BorrowedFd<'_> {
        self.table.as_fd()
    }

    /// Returns the system settings that were off before this or another machine switched them on.
    #[must_use]
    pub fn switched_on(&self) -> &[String] {
        &self.switched_on
    }

    /// Adopts the uplink that another process has set up for `spec` in the namespace `of` (`None`:
    /// the caller's). `table` is the descriptor of the uplink's rules, and `switched_on` are the
    /// settings that the other process has switched on.
    #[must_use]
    pub fn adopt(
        spec: &TapSpec,
        of: Option<Identity>,
        table: OwnedFd,
        switched_on: &[String],
    ) -> Self {
        Self {
            netns: spec.netns.clone(),
            of: of.or_else(|| netns::identity(netns::OWN)),
            name: table_name(spec),
            table,
            switched_on: switched_on.to_vec(),
        }
    }
}

impl Drop for NatUplink {
    fn drop(&mut self) {
        let end = || {
            if netns::identity(netns::OWN) != self.of {
                return Ok(());
            }
            let lock = Lock::take()?;
            nftables::delete(&self.table, &self.name)?;
            forwarding::switch_off_unneeded(&lock, &self.switched_on).map(drop)
        };
        // If this fails, or the name now denotes another namespace, the kernel is removing the old
        // namespace, including its forwarding.
        let _: Result<io::Result<()>, _> = in_namespace(self.netns.as_deref(), end);
    }
}

fn table_name(spec: &TapSpec) -> String {
    format!("{}{}", forwarding::PREFIX, spec.ifname)
}

/// Connects an interface of the calling thread's namespace, which must be up, to the network in its
/// specification.
pub(crate) fn join(
    spec: &TapSpec,
    network: &InterfaceNetwork,
) -> Result<Option<NatUplink>, NetError> {
    match &spec.uplink {
        None => Ok(None),
        Some(Uplink::Bridge(bridge)) => join_bridge(spec, bridge).map(|()| None),
        Some(Uplink::Nat(nat)) => translate(spec, network, nat).map(Some),
    }
}

fn join_bridge(spec: &TapSpec, bridge: &str) -> Result<(), NetError> {
    let failed = |step, hint| failed(spec, step, hint);
    let mut netlink = Netlink::open().map_err(failed("joined", "rtnetlink is needed"))?;
    let no_bridge = |error| NetError::NoInterface {
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
        "it must be an existing bridge; `ip link add NAME type bridge` creates one",
    ))
}

fn translate(spec: &TapSpec, network: &InterfaceNetwork, nat: &Nat) -> Result<NatUplink, NetError> {
    let rules = "it needs CAP_NET_ADMIN, Linux 5.12, and nf_tables with NAT and, unless \
                 `connections` is 0, connlimit; a table of its name is another machine's (`nft \
                 list tables`)";
    let translated = || failed(spec, "given address translation", rules);
    let lock = Lock::take().map_err(translated())?;
    let settings = forwarding::settings(network.addresses());
    let switched_on = forwarding::originally_off(&lock, &settings).map_err(translated())?;
    let mut table = NftTable::new(&table_name(spec), &forwarding::comment(&switched_on));
    if nat.connections != 0 {
        table.limit_connections(nat.connections, &spec.ifname);
    }
    table.guard(network.addresses(), &spec.ifname);
    for &(address, prefix) in network.addresses() {
        table.masquerade(address, prefix, &spec.ifname);
    }
    for forward in &nat.forward {
        let transport = match forward.transport {
            PortProtocol::Tcp => libc::IPPROTO_TCP,
            PortProtocol::Udp => libc::IPPROTO_UDP,
        };
        table.forward(transport as u8, forward.port, forward.to, &spec.ifname);
    }
    let table = table.install().map_err(translated())?;
    // The table must record the settings before they are switched on.
    let uplink = NatUplink::adopt(spec, None, table, &switched_on);
    let done = forwarding::switch_on(&lock, &settings).map_err(failed(
        spec,
        "given the system's forwarding",
        "packets must be forwarded between interfaces (net.ipv4.ip_forward, \
         net.ipv6.conf.all.forwarding): enable it by hand",
    ));
    // Dropping an uplink takes the lock.
    drop(lock);
    done.map(|()| uplink)
}
