//! Test set-ups: a TAP with several queues, a TAP with a queue for each of three guests, and a
//! socket that sends frames through the TAP's interface.
#![allow(unreachable_pub)]

use netdev::netns::Namespace;
use netdev::{OpenedTap, TapSpec, TapSteering, open_queues};
use nic::vmq::{QueueId, ReturnReason, Vmq, VmqBackend, VmqError};
use nic::{Buffer, BufferId, Buffers, Frame, Nic, Pool};
use nic_linux::TapNic;
use shmem::{Area, Span};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use testing::{require, skip};

pub const MACS: [[u8; 6]; 3] = [
    [2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 2],
    [2, 0, 0, 0, 0x80, 1],
];
/// A MAC that no station uses.
pub const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
pub const SHARED_ONLY: [u8; 6] = [0xff; 6];

/// The EtherType of the test's frames (IEEE's for local experiments). No other frame in the
/// namespace uses it.
pub const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// Returns a frame with this destination and number.
pub fn frame_to(mac: [u8; 6], number: u32) -> Vec<u8> {
    let mut frame = mac.to_vec();
    frame.extend([2, 0, 0, 0, 0, 0xbb]);
    frame.extend(ETHERTYPE);
    frame.extend(number.to_be_bytes());
    frame.resize(60, 0xee);
    frame
}

/// Opens a TAP in a separate namespace, with the queues and the MAC of `queues`. Returns `None` if
/// TAPs are not available.
pub fn open(queues: TapSpec) -> Option<(Namespace, OpenedTap)> {
    require!(tap);
    let namespace = Namespace::new().unwrap();
    namespace.enter(without_ipv6).unwrap();
    let spec = TapSpec {
        ifname: "wire".to_owned(),
        netns: Some(namespace.path().display().to_string()),
        mtu: 1500,
        tx_queue: 2000,
        ..queues
    };
    let opened = open_queues(&spec).unwrap();
    Some((namespace, opened))
}

/// Disables IPv6, so that the kernel sends no frames through new interfaces, which could precede a
/// frame of the test.
fn without_ipv6() {
    let _ignored_without_ipv6 = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
}

pub struct Guests {
    pub nic: TapNic,
    pub steering: Arc<TapSteering>,
    pub namespace: Namespace,
    /// Memory of `pool`.
    memory: Area,
    pool: Pool,
}

/// Steers frames without a monitor.
#[derive(Debug)]
struct Direct(Arc<TapSteering>);

impl nic::vmq::Steering for Direct {
    fn steer(&mut self, mac: [u8; 6], queue: Option<QueueId>) -> Result<u64, VmqError> {
        let done = self.0.steer(mac, queue.map(|queue| queue.0));
        done.map_err(|_| VmqError::Refused(0))
    }

    fn effective(&mut self) -> u64 {
        self.0.effective()
    }
}

impl Guests {
    pub fn new() -> Option<Self> {
        Self::with_offloads(false)
    }

    /// Creates guests like `new`. With `offloads`, frames may have pending offloads.
    pub fn with_offloads(offloads: bool) -> Option<Self> {
        let (namespace, opened) = open(TapSpec {
            queues: MACS.len() as u32,
            vnet_header: offloads,
            checksum: offloads,
            tso: offloads,
            ..TapSpec::default()
        })?;
        let steering = match opened.steering.unwrap() {
            Ok(steering) => Arc::new(steering),
            Err(error) => return skip(error),
        };
        let direct = Box::new(Direct(Arc::clone(&steering)));
        let nic = TapNic::new(opened.shared, offloads, offloads, offloads, 1500)
            .with_queues(opened.queues, direct);
        let memory = Area::anonymous(64 * 2048).unwrap();
        Some(Self {
            nic,
            steering,
            namespace,
            memory,
            pool: Pool::new(memory, 2048),
        })
    }

    /// Returns the buffer that begins at an address.
    pub fn buffer_at(&self, address: usize) -> Span {
        let all = self.memory.span();
        all.sub(address - all.addr(), 2048).unwrap()
    }

    pub fn vmq(&mut self) -> &mut dyn Vmq {
        self.nic.vmq().unwrap()
    }

    /// Allocates the next queue for guest `n`.
    pub fn alloc_queue(&mut self, n: usize) -> QueueId {
        self.alloc_queue_with(n, false)
    }

    /// Allocates a queue like `alloc_queue`, with split headers if `split` is true.
    pub fn alloc_queue_with(&mut self, n: usize, split: bool) -> QueueId {
        let vmq = self.vmq();
        let queue = vmq.alloc_queue().unwrap();
        vmq.split_headers(queue, split).unwrap();
        vmq.set_mac(queue, MACS[n]).unwrap();
        vmq.enable_queue(queue).unwrap();
        queue
    }

    /// Polls a queue, and returns the bytes of its frames.
    pub fn poll(&mut self, queue: QueueId) -> Vec<Vec<u8>> {
        self.poll_with(queue, |frame| frame.to_vec().unwrap())
    }

    /// Polls a queue, and returns the result of `inspect` for each frame.
    pub fn poll_with<T>(
        &mut self,
        queue: QueueId,
        mut inspect: impl FnMut(&mut Frame) -> T,
    ) -> Vec<T> {
        let mut posted = Posted {
            pool: &mut self.pool,
            frames: Vec::new(),
            posted: Vec::new(),
        };
        let polled =
            self.nic
                .vmq()
                .unwrap()
                .poll(queue, shmem::time::monotonic_ns(), 64, &mut posted);
        if polled.is_err() {
            return Vec::new();
        }
        let Posted { frames, posted, .. } = posted;
        let pieces = frames.iter().flat_map(|frame| &frame.pieces);
        let used: Vec<BufferId> = pieces.map(|piece| piece.buffer).collect();
        assert!(posted.starts_with(&used), "{used:?} of {posted:?}");
        let read = |mut frame: Frame| {
            let found = inspect(&mut frame);
            frame.recycle(&mut self.pool);
            found
        };
        frames.into_iter().map(read).collect()
    }
}

struct Posted<'a> {
    pool: &'a mut Pool,
    frames: Vec<Frame>,
    /// All taken buffers, in order.
    posted: Vec<BufferId>,
}

impl VmqBackend for Posted<'_> {
    fn alloc(&mut self) -> Option<Buffer> {
        let buffer = self.pool.take();
        self.posted.extend(buffer.map(|buffer| buffer.id));
        buffer
    }

    fn free(&mut self, buffer: BufferId, why: ReturnReason) {
        assert_eq!(why, ReturnReason::Unused);
        self.pool.put(buffer);
    }

    fn netif_rx(&mut self, frame: Frame) {
        self.frames.push(frame);
    }
}

/// A packet socket on the TAP's interface.
pub struct Sender(OwnedFd);

impl Sender {
    pub fn new(namespace: &Namespace) -> Self {
        let fd = namespace.enter(|| {
            let name = CString::new("wire").unwrap();
            // SAFETY: the first system call has no pointers, and the second one reads the name.
            let (fd, index) = unsafe {
                (
                    libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0),
                    libc::if_nametoindex(name.as_ptr()),
                )
            };
            assert!(fd >= 0 && index > 0);
            let address = libc::sockaddr_ll {
                sll_family: libc::AF_PACKET as u16,
                sll_protocol: 0,
                sll_ifindex: index as i32,
                sll_hatype: 0,
                sll_pkttype: 0,
                sll_halen: 0,
                sll_addr: [0; 8],
            };
            // SAFETY: `bind` reads the address, whose size is passed.
            let bound = unsafe {
                libc::bind(
                    fd,
                    (&raw const address).cast(),
                    size_of::<libc::sockaddr_ll>() as u32,
                )
            };
            assert_eq!(bound, 0);
            fd
        });
        // SAFETY: the kernel has just returned this descriptor, which has no other owner.
        Self(unsafe { OwnedFd::from_raw_fd(fd.unwrap()) })
    }

    /// Configures the socket for frames that begin with a virtio-net header of 10 bytes.
    pub fn offload(&self) {
        let on: libc::c_int = 1;
        // SAFETY: `setsockopt` reads the number, whose size is passed.
        let set = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_VNET_HDR,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as u32,
            )
        };
        assert_eq!(set, 0);
    }

    pub fn send(&self, frame: &[u8]) {
        // SAFETY: `write` reads the slice.
        let sent = unsafe { libc::write(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len()) };
        assert_eq!(sent, frame.len() as isize);
    }
}
