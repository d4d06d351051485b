//! Set-up of TAPs.

use crate::error::SetupError;
use crate::interface::{Network, check, configure, failed, in_place, namespace};
use crate::steering::Steering;
use crate::tun;
use crate::uplink::{self, Uplink};
use abi::machine::Tap as TapSpec;
use std::os::fd::OwnedFd;

/// A TAP that was set up: its descriptors are non-blocking and close-on-exec, and the interface
/// lives as long as any of them.
#[derive(Debug)]
pub struct Opened {
    /// The descriptor to send by, and to receive by what no other queue receives.
    pub shared: OwnedFd,
    /// One descriptor for each queue that was asked for, in order.
    pub queues: Vec<OwnedFd>,
    /// One descriptor like `shared` for each further shared queue that was asked for: a flow comes
    /// by the queue that the last frame of it, in either direction, went or came by, and a new one
    /// by a hash of its addresses and ports.
    pub shares: Vec<OwnedFd>,
    /// What makes the queues receive anything; none if no queue was asked for. Where the system
    /// does not permit it ([`SetupError::Steering`]) the TAP works all the same, by its shared
    /// descriptor.
    pub steering: Option<Result<Steering, SetupError>>,
    /// What joins it to the network of its namespace, as long as it is there.
    pub uplink: Option<Uplink>,
}

/// Creates the TAP that `spec` describes in its network namespace, configures it, brings it up,
/// and hands out its descriptors. Nothing is left behind when they are closed. It never takes over
/// an interface that exists already.
///
/// The calling thread's own namespace does not change.
///
/// # Errors
/// Which step failed on which interface of which namespace, and what to do about it.
pub fn open_queues(spec: &TapSpec) -> Result<Opened, SetupError> {
    check(spec)?;
    let network = Network::of(spec)?;
    in_place(spec.netns.as_deref(), || create(spec, &network))?
}

/// All that happens inside the namespace.
fn create(spec: &TapSpec, network: &Network) -> Result<Opened, SetupError> {
    let failed = |step, hint| failed(spec, step, hint);
    let open = |queue| {
        let fd = tun::open().map_err(|error| SetupError::NoTun { error })?;
        tun::attach(&fd, &spec.ifname, spec.vnet_header, queue).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST | libc::EINVAL) if queue != tun::Queue::Next => {
                    SetupError::Exists {
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
        queues.push(open(if n == 0 {
            tun::Queue::First
        } else {
            tun::Queue::Next
        })?);
    }
    // The last of these queues is the shared one.
    let fd = open(match (queues.is_empty(), spec.shares) {
        (false, _) => tun::Queue::Next,
        (true, 0) => tun::Queue::Only,
        (true, _) => tun::Queue::First,
    })?;
    let shares = (0..spec.shares).map(|_| open(tun::Queue::Next));
    let shares = shares.collect::<Result<Vec<_>, _>>()?;
    let steering = (!queues.is_empty()).then(|| {
        Steering::install(&fd, &spec.steered, spec.queues).map_err(|error| SetupError::Steering {
            interface: spec.ifname.clone(),
            error,
        })
    });
    if let Some(Err(_)) = &steering {
        // Without a program the kernel would spread frames over all queues.
        for queue in &queues {
            tun::detach(queue).map_err(failed("left with one queue", "see the kernel's log"))?;
        }
    }
    if spec.vnet_header {
        tun::offloads(&fd, spec.checksum, spec.tso)
            .map_err(failed("given offloads", "switch `checksum` and `tso` off"))?;
    }
    configure(spec, network)?;
    Ok(Opened {
        uplink: uplink::join(spec, network)?,
        shared: fd,
        queues,
        shares,
        steering,
    })
}
