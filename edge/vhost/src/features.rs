//! Feature bits of virtio-net and of the protocol, and the offer of a shim.

/// Feature bits of virtio and virtio-net.
pub mod virtio {
    /// The device accepts frames with blank checksums.
    pub const CSUM: u64 = 1 << 0;
    /// The driver accepts frames with blank checksums.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The configuration space holds an MTU.
    pub const MTU: u64 = 1 << 3;
    /// The configuration space holds a MAC.
    pub const MAC: u64 = 1 << 5;
    /// The driver accepts unsegmented TCP over IPv4.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The driver accepts unsegmented TCP over IPv6.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// The driver accepts unsegmented TCP with congestion marks.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// The device accepts unsegmented TCP over IPv4.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The device accepts unsegmented TCP over IPv6.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// The device accepts unsegmented TCP with congestion marks.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A received frame may lie in several chains.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// The configuration space holds the link's state.
    pub const STATUS: u64 = 1 << 16;
    /// The device has a control queue, through which the driver sets the number of queue pairs in
    /// use.
    pub const CTRL_VQ: u64 = 1 << 17;
    /// The device supports several queue pairs.
    pub const MQ: u64 = 1 << 22;
    /// The back end logs all writes, because a migration runs. This bit belongs to vhost, not to
    /// virtio.
    pub const LOG_ALL: u64 = 1 << 26;
    /// A header may share its descriptor with the frame.
    pub const ANY_LAYOUT: u64 = 1 << 27;
    /// A descriptor may refer to a table of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Notifications are suppressed by index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The back end has protocol features. This bit belongs to vhost-user, not to virtio.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// The device conforms to virtio 1.0: headers have 12 bytes.
    pub const VERSION_1: u64 = 1 << 32;
}

/// Protocol feature bits of vhost-user.
pub mod protocol {
    /// The back end supports several queue pairs: `GET_QUEUE_NUM`.
    pub const MQ: u64 = 1 << 0;
    /// The dirty log is a file, whose descriptor is attached to `SET_LOG_BASE`.
    pub const LOG_SHMFD: u64 = 1 << 1;
    /// `SEND_RARP`: the back end announces the virtual machine's MAC.
    pub const RARP: u64 = 1 << 2;
    /// The front end may request an acknowledgement of any request.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// `NET_SET_MTU`.
    pub const NET_MTU: u64 = 1 << 4;
    /// The back end may send requests: `SET_BACKEND_REQ_FD`.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// `GET_CONFIG` and `SET_CONFIG`.
    pub const CONFIG: u64 = 1 << 9;
    /// `ADD_MEM_REG`, `REM_MEM_REG`, `GET_MAX_MEM_SLOTS`.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

/// Maximum number of queue pairs of a device.
pub const QUEUE_PAIRS_MAX: u16 = 8;

/// Bytes of the configuration space, including zeros after the last field.
pub(crate) const CONFIG_BYTES: usize = 256;

const STATUS_LINK_UP: u16 = 1;

/// The offer of a shim to a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Queue pairs, 1 … [`QUEUE_PAIRS_MAX`].
    pub queue_pairs: u16,
    /// The interface's MAC.
    pub mac: [u8; 6],
    /// Maximum bytes of an IP packet.
    pub mtu: u16,
    /// Whether each side may leave checksums to the other.
    pub checksum: bool,
    /// Whether each side may leave segmentation to the other; requires `checksum`.
    pub tso: bool,
    /// Maximum bytes of a virtual machine's memory that are mapped at a time.
    pub memory_max: u64,
}

impl Offer {
    /// Returns the feature bits.
    #[must_use]
    pub const fn features(&self) -> u64 {
        use virtio::*;
        let mut bits = MTU | MAC | MRG_RXBUF | STATUS | LOG_ALL | ANY_LAYOUT;
        bits |= INDIRECT_DESC | EVENT_IDX | PROTOCOL_FEATURES | VERSION_1;
        if self.checksum {
            bits |= CSUM | GUEST_CSUM;
        }
        if self.checksum && self.tso {
            bits |= GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | HOST_TSO4 | HOST_TSO6 | HOST_ECN;
        }
        // A driver rejects a device with several pairs and no control queue. QEMU serves that queue
        // itself and does not accept this feature; User-Mode Linux lets the back end serve the
        // queue.
        if self.queue_pairs > 1 {
            bits |= MQ | CTRL_VQ;
        }
        bits
    }

    /// Returns the number of rings of a connection: two for each pair, and a control queue if the
    /// offer has several pairs.
    #[must_use]
    pub(crate) const fn rings(&self) -> usize {
        let pairs = self.queue_pairs as usize;
        2 * pairs + (pairs > 1) as usize
    }

    /// Returns the protocol feature bits.
    #[must_use]
    pub const fn protocol_features(&self) -> u64 {
        use protocol::*;
        MQ | LOG_SHMFD | RARP | REPLY_ACK | NET_MTU | BACKEND_REQ | CONFIG | CONFIGURE_MEM_SLOTS
    }

    /// Returns the configuration space (`struct virtio_net_config`).
    #[must_use]
    pub(crate) fn config_space(&self, is_link_up: bool) -> [u8; CONFIG_BYTES] {
        let mut space = [0; CONFIG_BYTES];
        let status = if is_link_up { STATUS_LINK_UP } else { 0 };
        let fields = [
            (0, &self.mac[..]),
            (6, &status.to_le_bytes()),
            (8, &self.queue_pairs.to_le_bytes()),
            (10, &self.mtu.to_le_bytes()),
        ];
        for (at, bytes) in fields {
            if let Some(field) = space.get_mut(at..at + bytes.len()) {
                field.copy_from_slice(bytes);
            }
        }
        space
    }
}

/// The features that the driver has accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioFeatures(pub u64);

impl VirtioFeatures {
    /// Returns whether all bits of `mask` are accepted.
    #[must_use]
    #[inline]
    pub const fn has(self, mask: u64) -> bool {
        self.0 & mask == mask
    }

    /// Returns the ring number of the control queue, if the back end serves it. `queue_pairs` is
    /// the number of pairs offered.
    #[must_use]
    pub(crate) const fn control_ring(self, queue_pairs: u16) -> Option<usize> {
        match (self.has(virtio::CTRL_VQ), self.has(virtio::MQ)) {
            (false, _) => None,
            (true, true) => Some(2 * queue_pairs as usize),
            // The driver does not support several pairs.
            (true, false) => Some(2),
        }
    }

    /// Returns the length of the header in front of each frame, bytes.
    #[must_use]
    #[inline]
    pub const fn header_bytes(self) -> usize {
        if self.0 & (virtio::MRG_RXBUF | virtio::VERSION_1) != 0 {
            12
        } else {
            10
        }
    }
}
