//! AF_XDP sockets, as a driver domain uses them: the monitor has made socket and rings, and says
//! where they lie and what the kernel counts.

use abi::PAGE;
use abi::xdp::{Counter, Ring, RingLayout, XdpControl};
use config::domain::BUFFER_BYTES;
use nic_linux::XdpNic;
use nic_linux::xdp::{KernelCounters, Parts};
use runtime::platform::Platform;
use runtime::start::{StartError, refused};
use shmem::{Area, Span};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A socket, and where its parts lie.
pub struct Socket {
    /// Number of the device.
    pub device: u32,
    /// The device.
    pub fd: OwnedFd,
    /// First slot of the window that is kept for its rings.
    pub rings_slot: u32,
    /// Entries of each.
    pub entries: u32,
}

/// The NIC over `umem`, of which the first `send_bytes` are frames that leave.
///
/// # Errors
/// The monitor has mapped no rings, or other ones.
pub fn nic(
    socket: Socket,
    umem: Span,
    send_bytes: usize,
    mtu: usize,
    platform: &Rc<dyn Platform>,
) -> Result<XdpNic, StartError> {
    let Socket {
        device,
        fd,
        rings_slot,
        entries,
    } = socket;
    let chunk_bytes = BUFFER_BYTES as usize;
    let layouts = layouts(
        "the rings of an AF_XDP socket",
        device,
        Ring::ALL,
        &**platform,
    )?;
    let rings = rings(Ring::ALL.len(), rings_slot, entries, platform.window());
    let parts = Parts {
        fd,
        umem,
        chunk_bytes,
        send_chunks: send_bytes / chunk_bytes,
        rings: rings.unwrap_or(Span::EMPTY),
        layouts,
        entries,
        mtu,
    };
    let counters = kernel_counters(device, platform, &Counter::ALL);
    XdpNic::new(parts, counters).ok_or(StartError::Damaged(
        "the rings of an AF_XDP socket do not fit their place",
    ))
}

/// Where the parts of a device's rings lie. The first answer also says that the rings are there:
/// they are mapped before.
///
/// # Errors
/// The monitor refuses: `what` names it.
pub(crate) fn layouts<const N: usize>(
    what: &str,
    device: u32,
    rings: [Ring; N],
    platform: &dyn Platform,
) -> Result<[RingLayout; N], StartError> {
    let mut layouts = [RingLayout::decode(0); N];
    for (layout, ring) in layouts.iter_mut().zip(rings) {
        let asked = XdpControl::Layout(ring).encode();
        let told = platform.tell(device, asked);
        let word = told.map_err(|why| refused(what, why))?;
        *layout = RingLayout::decode(word);
    }
    Ok(layouts)
}

/// The place of so many rings of `entries` entries, from slot `first` of the window on.
pub(crate) fn rings(count: usize, first: u32, entries: u32, window: Area) -> Option<Span> {
    let bytes = count * Ring::slots(entries) as usize * PAGE;
    window.at(first as usize * PAGE, bytes)
}

/// Some of what the kernel counts of a device.
pub(crate) fn kernel_counters(
    device: u32,
    platform: &Rc<dyn Platform>,
    which: &'static [Counter],
) -> KernelCounters {
    let platform = Rc::clone(platform);
    Box::new(move || {
        let read = |&counter: &Counter| {
            let asked = XdpControl::Counter(counter).encode();
            let told = platform.tell(device, asked);
            told.ok().map(|count| (name(counter), count))
        };
        which.iter().filter_map(read).collect()
    })
}

/// What a counter of the kernel's is called.
fn name(counter: Counter) -> &'static str {
    match counter {
        Counter::Dropped => "rx_dropped",
        Counter::BadTransmit => "tx_bad_descriptor",
        Counter::RingFull => "rx_ring_full",
        Counter::FillEmpty => "rx_no_buffer",
    }
}
