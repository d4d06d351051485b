//! AF_XDP sockets of a driver domain. The monitor has created the socket and the rings, and
//! provides the layout of the rings and the kernel's counters.

use abi::PAGE;
use abi::xdp::{Counter, Ring, RingLayout, XdpControl};
use config::domain::BUFFER_BYTES;
use nic_linux::XdpNic;
use nic_linux::xdp::{KernelCounters, SocketParts};
use runtime::platform::Platform;
use runtime::start::{StartError, rejected_error};
use shmem::time::monotonic_ns;
use shmem::{Area, Span, futex};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Timeout for an answer from netd when a socket starts. It is shorter than the start-up timeout.
const ANSWER_TIMEOUT_NS: u64 = 3_000_000_000;
/// Retry interval while the monitor answers immediately that netd is not running.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A socket and the place of its rings.
pub struct SocketLayout {
    /// Device number.
    pub device: u32,
    /// Descriptor of the socket.
    pub fd: OwnedFd,
    /// First slot of the rings in the window.
    pub rings_slot: u32,
    /// Number of entries of each ring.
    pub entries: u32,
}

/// Returns the NIC of a socket with the memory `umem`, whose first `send_bytes` bytes are for
/// sending.
///
/// # Errors
/// Returns an error if the monitor has mapped no rings, or rings with an unexpected layout.
pub fn nic(
    socket: SocketLayout,
    umem: Span,
    send_bytes: usize,
    mtu: usize,
    platform: &Rc<dyn Platform>,
) -> Result<XdpNic, StartError> {
    let SocketLayout {
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
    let parts = SocketParts {
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
    let own = Rc::clone(platform);
    let is_sound = Box::new(move || {
        // If the monitor rejects this, the next driver domain starts with a new socket.
        let _ = own.device_control(device, XdpControl::ReportReusable.encode());
    });
    XdpNic::new(parts, counters, is_sound).ok_or(StartError::BadStartInfo(
        "the rings of an AF_XDP socket do not fit their place",
    ))
}

/// Returns the layouts of a device's rings. When the monitor has answered, the rings are mapped.
///
/// # Errors
/// Returns an error if the monitor rejects the request; `what` names the request in the error.
pub(crate) fn layouts<const N: usize>(
    what: &str,
    device: u32,
    rings: [Ring; N],
    platform: &dyn Platform,
) -> Result<[RingLayout; N], StartError> {
    let mut layouts = [RingLayout::decode(0); N];
    for (layout, ring) in layouts.iter_mut().zip(rings) {
        let word = device_control(what, device, XdpControl::Layout(ring).encode(), platform)?;
        *layout = RingLayout::decode(word);
    }
    Ok(layouts)
}

/// Makes a control call for a device, and returns the answer.
///
/// # Errors
/// Returns an error if the monitor rejects the request; `what` names the request in the error.
pub(crate) fn device_control(
    what: &str,
    device: u32,
    request: [u64; 2],
    platform: &dyn Platform,
) -> Result<u64, StartError> {
    let end_ns = monotonic_ns().saturating_add(ANSWER_TIMEOUT_NS);
    loop {
        let answer = platform.device_control(device, request);
        // The core does not wait for netd while netd has no CPU or restarts, so the driver retries.
        let is_unanswered = matches!(&answer, Err(why) if why.kind() == ErrorKind::WouldBlock);
        if !is_unanswered || monotonic_ns() >= end_ns {
            return answer.map_err(|why| rejected_error(what, why));
        }
        // A futex wait is the only sleep that a domain may use.
        futex::wait(&AtomicU32::new(0), 0, Some(RETRY_INTERVAL));
    }
}

/// Returns the memory of `count` rings of `entries` entries each, starting at slot `first` of the
/// window.
pub(crate) fn rings(count: usize, first: u32, entries: u32, window: Area) -> Option<Span> {
    let bytes = count * Ring::slots(entries) as usize * PAGE;
    window.at(first as usize * PAGE, bytes)
}

/// Returns a function that reads the counters `which` of a device from the kernel.
pub(crate) fn kernel_counters(
    device: u32,
    platform: &Rc<dyn Platform>,
    which: &'static [Counter],
) -> KernelCounters {
    let platform = Rc::clone(platform);
    Box::new(move || {
        let read = |&counter: &Counter| {
            let request = XdpControl::Counter(counter).encode();
            let answer = platform.device_control(device, request);
            answer.ok().map(|count| (name(counter), count))
        };
        which.iter().filter_map(read).collect()
    })
}

/// Returns the name of a kernel counter.
fn name(counter: Counter) -> &'static str {
    match counter {
        Counter::Dropped => "rx_dropped",
        Counter::BadTransmit => "tx_bad_descriptor",
        Counter::RingFull => "rx_ring_full",
        Counter::FillEmpty => "rx_no_buffer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{ConnId, XenbusState};
    use runtime::platform::{ConnectRecord, Doorbell, PeerEnd};
    use std::cell::Cell;
    use std::io;

    /// A monitor that cannot reach netd for the first requests; the cell has their number.
    #[derive(Debug)]
    struct UnreachableNetd(Cell<u32>);

    impl Platform for UnreachableNetd {
        fn peer(&self, _: ConnId) -> io::Result<Option<PeerEnd>> {
            Ok(None)
        }

        fn set_state(&self, _: ConnId, _: XenbusState, _: &ConnectRecord) -> io::Result<()> {
            Ok(())
        }

        fn doorbell(&self, _: ConnId) -> io::Result<Box<dyn Doorbell>> {
            Err(ErrorKind::NotFound.into())
        }

        fn window(&self) -> Area {
            Area::anonymous(PAGE).unwrap()
        }

        fn device_control_all(&self, _: u32, all: &[[u64; 2]]) -> Vec<io::Result<u64>> {
            let left = self.0.get();
            self.0.set(left.saturating_sub(1));
            let silent = || Err(ErrorKind::WouldBlock.into());
            let answer = |_| if left > 0 { silent() } else { Ok(7) };
            all.iter().map(answer).collect()
        }
    }

    #[test]
    fn start_waits_until_netd_answers() {
        let rings = [Ring::Receive, Ring::Fill];
        let silent = UnreachableNetd(Cell::new(3));
        let found = layouts("rings", 1, rings, &silent).unwrap();
        assert_eq!(found, [RingLayout::decode(7); 2]);
    }
}
