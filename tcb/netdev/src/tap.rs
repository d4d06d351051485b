//! Set-up of TAPs.

use crate::error::NetError;
use crate::forwarding;
use crate::interface::{InterfaceNetwork, check, configure, failed, in_namespace, namespace};
use crate::napi_threads;
use crate::netlink::Netlink;
use crate::netns::{self, Identity};
use crate::steering::TapSteering;
use crate::tun;
use crate::uplink::{self, NatUplink};
use abi::machine::Tap as TapSpec;
use std::io;
use std::os::fd::OwnedFd;

/// A TAP that was set up. Its descriptors are non-blocking and close-on-exec. The interface exists
/// until all of them are closed.
#[derive(Debug)]
pub struct OpenedTap {
    /// The descriptor for sending, and for receiving frames that no other queue receives.
    pub shared: OwnedFd,
    /// One descriptor for each requested dedicated queue, in order.
    pub queues: Vec<OwnedFd>,
    /// One descriptor like `shared` for each further requested shared queue. The kernel delivers a
    /// flow to the queue that last sent or received one of its frames. For a new flow, it selects
    /// the queue by a hash of addresses and ports.
    pub shares: Vec<OwnedFd>,
    /// The steering of frames to the dedicated queues; `None` if none were requested. If the system
    /// does not permit it ([`NetError::Steering`]), the TAP still works through its shared
    /// descriptor.
    pub steering: Option<Result<TapSteering, NetError>>,
    /// The connection to the network of the TAP's namespace, if any. Dropping it removes the
    /// connection.
    pub uplink: Option<NatUplink>,
}

/// Creates the TAP that `spec` describes in its network namespace, configures it, brings it up, and
/// returns its descriptors. Unless the TAP is persistent, the kernel removes it when they are
/// closed. Reuses an existing interface only if it is persistent and has the same owner. A reused
/// interface keeps its settings, and missing settings are added.
///
/// The calling thread's namespace does not change.
///
/// # Errors
/// Returns an error that names the failed step, the interface, the namespace and a remedy.
pub fn open_queues(spec: &TapSpec) -> Result<OpenedTap, NetError> {
    check(spec)?;
    let network = InterfaceNetwork::of(spec)?;
    in_namespace(spec.netns.as_deref(), || create(spec, &network))?
}

/// Makes the interface non-persistent, so that the kernel removes it with its last descriptor.
///
/// # Errors
/// Returns an error if the descriptor does not belong to a TAP.
pub fn release(fd: &OwnedFd) -> io::Result<()> {
    tun::persist(fd, false)
}

/// Removes another process's TAP that has no open descriptor: the interface if it is persistent,
/// and the settings that were switched on for it in the namespace `of` (`None`: the caller's).
///
/// # Errors
/// Returns an error if the interface cannot be removed, or its namespace does not exist.
pub fn remove(
    spec: &TapSpec,
    of: Option<Identity>,
    switched_on: &[String],
) -> Result<(), NetError> {
    let of = of.or_else(|| netns::identity(netns::OWN));
    if let Some(of) = of.filter(|_| !switched_on.is_empty()) {
        forwarding::switch_off_for_dead(spec.netns.as_deref(), of, switched_on)?;
    }
    let remove = || -> io::Result<()> {
        let owner = spec.persistent.as_deref();
        if owner.map(|owner| is_reusable(spec, owner)).transpose()? == Some(true) {
            let mut netlink = Netlink::open()?;
            let index = netlink.index(&spec.ifname)?;
            netlink.delete_link(index)?;
        }
        Ok(())
    };
    // The request that failed may be the one for the alias, so the owner may be unknown.
    let hint = "remove it by `ip link del`, but only if `ip -d link` shows the alias `grantway \
                NAME` with the machine's name";
    in_namespace(spec.netns.as_deref(), remove)?.map_err(failed(spec, "removed", hint))
}

/// Returns the alias that marks the owner of a persistent interface.
pub(crate) fn alias(owner: &str) -> String {
    format!("grantway {owner}")
}

/// Returns whether a persistent interface of this owner exists and can be reused. Removes an
/// interface whose number of queues differs, because the kernel would not reuse it.
fn is_reusable(spec: &TapSpec, owner: &str) -> io::Result<bool> {
    let mut netlink = Netlink::open()?;
    let Ok(index) = netlink.index(&spec.ifname) else {
        return Ok(false);
    };
    let (of, queues) = netlink.alias(index)?;
    if of != alias(owner) {
        return Ok(false);
    }
    let has_same_queues = (queues > 1) == (spec.queues + spec.shares > 0);
    if !has_same_queues {
        netlink.delete_link(index)?;
    }
    Ok(has_same_queues)
}

/// Makes a complete interface persistent.
fn make_persistent(spec: &TapSpec, owner: &str, fd: &OwnedFd) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let index = netlink.index(&spec.ifname)?;
    netlink.set_alias(index, &alias(owner))?;
    tun::persist(fd, true)
}

/// Creates and configures the TAP in the calling thread's namespace.
fn create(spec: &TapSpec, network: &InterfaceNetwork) -> Result<OpenedTap, NetError> {
    let failed = |step, hint| failed(spec, step, hint);
    let owner = spec.persistent.as_deref();
    let is_reusable = owner.map(|owner| is_reusable(spec, owner)).transpose();
    let is_reusable =
        is_reusable.map_err(failed("searched for", "rtnetlink is needed"))? == Some(true);
    let first = match is_reusable {
        true => tun::QueueRole::Next,
        false => tun::QueueRole::First,
    };
    let open = |queue| {
        let fd = tun::open().map_err(|error| NetError::NoTun { error })?;
        let modes = (spec.vnet_header, spec.napi_threads);
        tun::attach(&fd, &spec.ifname, modes, queue).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST | libc::EINVAL)
                    if !matches!(queue, tun::QueueRole::Next | tun::QueueRole::Existing) =>
                {
                    NetError::Exists {
                        interface: spec.ifname.clone(),
                        namespace: namespace(spec.netns.as_deref()),
                        error,
                    }
                }
                _ => failed(
                    "created",
                    "it needs CAP_NET_ADMIN in the namespace: run as root, or in a user namespace \
                     that owns it",
                )(error),
            }
        })?;
        Ok(fd)
    };
    let mut queues = Vec::new();
    for n in 0..spec.queues {
        queues.push(open(if n == 0 { first } else { tun::QueueRole::Next })?);
    }
    // The last queue of an interface is the shared one.
    let fd = open(match (queues.is_empty(), spec.shares) {
        (false, _) => tun::QueueRole::Next,
        (true, 0) if is_reusable => tun::QueueRole::Existing,
        (true, 0) => tun::QueueRole::Only,
        (true, _) => first,
    })?;
    let shares = (0..spec.shares).map(|_| open(tun::QueueRole::Next));
    let shares = shares.collect::<Result<Vec<_>, _>>()?;
    let steering = (!queues.is_empty()).then(|| {
        TapSteering::install(&fd, spec.queues).map_err(|error| NetError::Steering {
            interface: spec.ifname.clone(),
            error,
        })
    });
    if let Some(Err(_)) = &steering {
        // Without a program, the kernel would distribute frames over all queues.
        for queue in &queues {
            tun::detach(queue).map_err(failed("reduced to one queue", "see the kernel's log"))?;
        }
    }
    if spec.vnet_header {
        tun::offloads(&fd, spec.checksum, spec.tso)
            .map_err(failed("given offloads", "switch `checksum` and `tso` off"))?;
    }
    if spec.napi_threads {
        napi_threads::switch_on(&spec.ifname).map_err(failed(
            "given NAPI threads",
            "this needs Linux 5.12 and the right to mount a writable sysfs; omit `napi_threads`",
        ))?;
    }
    configure(spec, network)?;
    let uplink = uplink::join(spec, network)?;
    if let Some(owner) = owner {
        make_persistent(spec, owner, &fd)
            .map_err(failed("made persistent", "see the kernel's log"))?;
    }
    Ok(OpenedTap {
        uplink,
        shared: fd,
        queues,
        shares,
        steering,
    })
}
