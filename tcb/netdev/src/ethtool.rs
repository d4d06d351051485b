//! The required part of SIOCETHTOOL: the number of an interface's queues, and switches for its
//! checksums, segmentation and VLAN tags (linux/ethtool.h).

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_SS_FEATURES: u32 = 4;

/// Features that strip VLAN tags from received frames.
pub(super) const RX_VLAN_FEATURES: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];
/// Features that pass VLAN tags of sent frames to the interface separately.
pub(super) const TX_VLAN_FEATURES: [&str; 2] = ["tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"];

/// Features that pass TCP segments above the MTU to the interface.
pub(super) const TX_TSO_FEATURES: [&str; 5] = [
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp-accecn-segmentation",
];

/// Maximum number of features supported here (Linux 6.18 has 64), and bytes of a feature's name.
const FEATURES_MAX: usize = 128;
const NAME_BYTES: usize = 32;
const BLOCKS: usize = FEATURES_MAX / 32;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    cmd: u32,
    data: u32,
}

/// `struct ethtool_channels`: the maximum of each type, then the number in use.
#[repr(C)]
#[derive(Default)]
struct Channels {
    cmd: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_drvinfo`, of which only the driver's name is read.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

const _: () = assert!(size_of::<DriverInfo>() == 196);

/// `struct ethtool_sset_info` for one set.
#[repr(C)]
struct SetInfo {
    cmd: u32,
    reserved: u32,
    mask: u64,
    count: u32,
    padding: u32,
}

/// `struct ethtool_gstrings`.
#[repr(C)]
struct GetStrings {
    cmd: u32,
    set: u32,
    len: u32,
    names: [[u8; NAME_BYTES]; FEATURES_MAX],
}

/// `struct ethtool_sfeatures`: for each 32 features, a mask of the features to change, and their
/// new values.
#[repr(C)]
struct FeatureMasks {
    cmd: u32,
    size: u32,
    blocks: [[u32; 2]; BLOCKS],
}

/// `struct ethtool_gfeatures`: for each 32 features, masks of available, requested, active and
/// unchangeable features.
#[repr(C)]
struct Active {
    cmd: u32,
    size: u32,
    blocks: [[u32; 4]; BLOCKS],
}

/// `struct ifreq` with a pointer.
#[repr(C)]
struct PointerRequest<T> {
    name: [u8; libc::IFNAMSIZ],
    data: *mut T,
    rest: [u8; 16],
}

const _: () = assert!(size_of::<PointerRequest<u8>>() == size_of::<libc::ifreq>());

/// An interface, by name, in the namespace of the thread that opens this.
pub(super) struct Ethtool<'a> {
    socket: OwnedFd,
    name: &'a str,
}

impl<'a> Ethtool<'a> {
    /// Opens an interface. `name` has at most 15 bytes.
    pub(super) fn open(name: &'a str) -> io::Result<Self> {
        let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, name })
    }

    /// Returns the number of receive queues.
    pub(super) fn receive_queues(&self) -> io::Result<u32> {
        let mut channels = Channels {
            cmd: ETHTOOL_GCHANNELS,
            ..Channels::default()
        };
        // SAFETY: the command reads and writes one `struct ethtool_channels`.
        match unsafe { self.call(&mut channels) } {
            Ok(()) => Ok(channels.rx.saturating_add(channels.combined).max(1)),
            // Drivers with a single queue need not implement this command.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the interface is one end of a veth pair.
    pub(super) fn is_veth(&self) -> io::Result<bool> {
        let mut info = DriverInfo {
            cmd: ETHTOOL_GDRVINFO,
            driver: [0; 32],
            rest: [0; 160],
        };
        // SAFETY: the command reads and writes one `struct ethtool_drvinfo`, whose size this is.
        match unsafe { self.call(&mut info) } {
            Ok(()) => Ok(info.driver.starts_with(b"veth\0")),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the kernel compute checksums before it passes packets to the interface.
    pub(super) fn fill_in_checksums(&self) -> io::Result<()> {
        let mut value = Value {
            cmd: ETHTOOL_STXCSUM,
            data: 0,
        };
        // SAFETY: the command reads one `struct ethtool_value`.
        unsafe { self.call(&mut value) }
    }

    /// Disables these features, as far as the interface has them. Returns false if one of them
    /// remains enabled.
    pub(super) fn switch_off(&self, features: &[&str]) -> io::Result<bool> {
        let mut info = SetInfo {
            cmd: ETHTOOL_GSSET_INFO,
            reserved: 0,
            mask: 1 << ETH_SS_FEATURES,
            count: 0,
            padding: 0,
        };
        // SAFETY: the command reads and writes one `struct ethtool_sset_info` with one count.
        unsafe { self.call(&mut info) }?;
        if info.count as usize > FEATURES_MAX {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let size = info.count.div_ceil(u32::BITS);
        let mut names = GetStrings {
            cmd: ETHTOOL_GSTRINGS,
            set: ETH_SS_FEATURES,
            len: info.count,
            names: [[0; NAME_BYTES]; FEATURES_MAX],
        };
        // SAFETY: the command writes one name per feature of the kernel. The array has space for
        // that number, which was checked above and does not change.
        unsafe { self.call(&mut names) }?;
        let mut change = FeatureMasks {
            cmd: ETHTOOL_SFEATURES,
            size,
            blocks: [[0; 2]; BLOCKS],
        };
        for (n, name) in names.names.iter().enumerate() {
            let name = name.split(|byte| *byte == 0).next().unwrap_or(&[]);
            let is_selected = features.iter().any(|feature| feature.as_bytes() == name);
            if let Some([valid, _]) = change.blocks.get_mut(n / 32).filter(|_| is_selected) {
                *valid |= 1 << (n % 32);
            }
        }
        // SAFETY: the command reads `size` blocks, which is the array's length.
        unsafe { self.call(&mut change) }?;
        let mut active = Active {
            cmd: ETHTOOL_GFEATURES,
            size,
            blocks: [[0; 4]; BLOCKS],
        };
        // SAFETY: the command writes `size` blocks, which is the array's length.
        unsafe { self.call(&mut active) }?;
        let mut blocks = change.blocks.iter().zip(&active.blocks);
        Ok(blocks.all(|([meant, _], [_, _, active, _])| meant & active == 0))
    }

    /// # Safety
    /// `data` is the structure that its command reads and writes.
    unsafe fn call<T>(&self, data: &mut T) -> io::Result<()> {
        let mut request = PointerRequest {
            name: [0; libc::IFNAMSIZ],
            data: &raw mut *data,
            rest: [0; 16],
        };
        let name = self.name.bytes().take(libc::IFNAMSIZ - 1);
        for (to, from) in request.name.iter_mut().zip(name) {
            *to = from;
        }
        // SAFETY: SIOCETHTOOL reads one `struct ifreq`, whose size `PointerRequest` has, and the
        // data that the caller guarantees. Both outlive the call.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}
