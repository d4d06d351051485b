//! As much of SIOCETHTOOL as is needed: how many queues an interface has, and the switch for its
//! checksums (linux/ethtool.h).

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    cmd: u32,
    data: u32,
}

/// `struct ethtool_channels`: the most of each kind, then how many are in use.
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

/// `struct ifreq` with a pointer.
#[repr(C)]
struct PointerRequest<T> {
    name: [u8; libc::IFNAMSIZ],
    data: *mut T,
    rest: [u8; 16],
}

const _: () = assert!(size_of::<PointerRequest<u8>>() == size_of::<libc::ifreq>());

/// The interface of a name in the namespace of the thread that makes this.
pub(super) struct Ethtool<'a> {
    socket: OwnedFd,
    name: &'a str,
}

impl<'a> Ethtool<'a> {
    /// `name` has at most 15 bytes.
    pub(super) fn open(name: &'a str) -> io::Result<Self> {
        let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, name })
    }

    /// Queues that receive.
    pub(super) fn receive_queues(&self) -> io::Result<u32> {
        let mut channels = Channels {
            cmd: ETHTOOL_GCHANNELS,
            ..Channels::default()
        };
        // SAFETY: the command reads and writes one `struct ethtool_channels`.
        match unsafe { self.call(&mut channels) } {
            Ok(()) => Ok(channels.rx.saturating_add(channels.combined).max(1)),
            // Drivers with one queue need not know what queues are.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
            Err(error) => Err(error),
        }
    }

    /// Whether it is one end of a veth pair.
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

    /// Makes the kernel fill in checksums before it hands packets to the interface.
    pub(super) fn fill_in_checksums(&self) -> io::Result<()> {
        let mut value = Value {
            cmd: ETHTOOL_STXCSUM,
            data: 0,
        };
        // SAFETY: the command reads one `struct ethtool_value`.
        unsafe { self.call(&mut value) }
    }

    /// # Safety
    /// `data` is what its command reads and writes.
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
        // SAFETY: SIOCETHTOOL reads one `struct ifreq`, whose size `PointerRequest` has, and
        // through it what the caller vouches for; all of it lives through the call.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}
