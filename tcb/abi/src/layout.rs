//! The address map of a domain. The monitor lays it out before the domain's first instruction;
//! no range is ever used for anything else, so an address inside one never becomes a Rust object.
//!
//! ```text
//! 0x5d00_0000_0000  INFO     start info, shared words, call page, grant table, config
//! 0x5d80_0000_0000  MAILBOX  requests to the domain, and its replies
//! 0x5e00_0000_0000  FRAMES   the domain's own page frames (what it may grant)
//! 0x5f00_0000_0000  STUB     the agent's code and its argument pages (sealed, read-only here)
//! 0x6000_0000_0000  WINDOW   where granted pages of others appear; only the agent maps here
//! ```
//!
//! INFO and FRAMES are shared with the core only. The domain may scribble over INFO at any time:
//! the core copies what it reads out of it once and checks the copy. MAILBOX is shared with the
//! manager, and the core does not look into it.

pub mod mailbox;

/// Bytes of a page, and of a page frame.
pub const PAGE: usize = 4096;

/// Start of the information region.
pub const INFO: usize = 0x5d00_0000_0000;
/// Start of the mailbox.
pub const MAILBOX: usize = 0x5d80_0000_0000;
/// Start of the domain's own page frames.
pub const FRAMES: usize = 0x5e00_0000_0000;
/// Start of the agent's stub (one page) and of its argument pages.
pub const STUB: usize = 0x5f00_0000_0000;
/// Start of the grant window. 4 GiB aligned, so that a filter can check the high word alone.
pub const WINDOW: usize = 0x6000_0000_0000;
/// Slots that a window may have at the most (the high word stays the same over all of them).
pub const WINDOW_SLOTS_MAX: u32 = 1 << 20;
/// Frames that a domain may have at the most.
pub const FRAMES_MAX: u32 = 1 << 20;

/// Bytes of the largest entry of a ring that a device shows in a window.
pub const RING_ENTRY_BYTES: usize = 16;

/// Slots of the window that are kept for each such ring of `entries` entries, one of them for its
/// head.
#[must_use]
pub const fn ring_slots(entries: u32) -> u32 {
    1 + (entries * RING_ENTRY_BYTES as u32).div_ceil(PAGE as u32)
}

/// Offsets of words within INFO, in bytes. `START_*` are written by the monitor before the start.
pub mod info {
    use crate::layout::PAGE;

    /// u64: [`MAGIC`].
    pub const START_MAGIC: usize = 0x00;
    /// u64: the domain's own id.
    pub const START_DOMAIN: usize = 0x08;
    /// u64: page frames at FRAMES.
    pub const START_FRAMES: usize = 0x10;
    /// u64: slots of the grant window.
    pub const START_WINDOW_SLOTS: usize = 0x18;
    /// u64: entries of the grant table.
    pub const START_GRANT_ENTRIES: usize = 0x20;
    /// u64: bytes of configuration at [`config`].
    pub const START_CONFIG_BYTES: usize = 0x28;
    /// u64: devices that can be attached: [`crate::hypercall::Attach::Device`] 0 … n-1.
    pub const START_DEVICES: usize = 0x30;
    /// u64: the set of CPUs that the domain may run on, one bit each (CPUs 0 … 63).
    pub const START_CPUS: usize = 0x38;
    /// u64: rate of the time stamp counter, Hz, so that domains need not measure it; 0: not known.
    pub const START_TSC_HZ: usize = 0x40;
    /// u64: [`crate::version::VERSION`] of the monitor. This word stays where it is in every
    /// version, as the magic does.
    pub const START_VERSION: usize = 0x48;
    /// "GRANTWAY" in ASCII, first letter in the lowest byte.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"GRANTWAY");

    /// u32: what the monitor has to say, one bit per kind ([`PENDING_MAILBOX`] …); the domain
    /// takes it by swapping 0 in.
    pub const PENDING: usize = PAGE;
    /// u32: 1 while the domain sleeps or is about to: the monitor then writes its eventfd.
    pub const ARMED: usize = PAGE + 4;
    /// u32: the CPU that the domain ran on last.
    pub const CPU: usize = PAGE + 8;
    /// u64: grows whenever the domain's main loop turns, asleep or not: see [`PENDING_PING`].
    pub const HEARTBEAT: usize = PAGE + 16;
    /// u64 words, one bit per connection: which ones [`PENDING_CONNECT`] is about. The domain takes
    /// bits by clearing them.
    pub const CHANGED: usize = PAGE + 192;
    const _: () = assert!(CHANGED + super::fd::CONNECTIONS_MAX as usize / 8 <= 2 * PAGE);

    /// Where a connection's word lies in [`CHANGED`], and its bit there.
    #[must_use]
    pub const fn changed(conn: u32) -> (usize, u64) {
        (CHANGED + (conn / 64 * 8) as usize, 1 << (conn % 64))
    }

    /// Pending bit: a request waits in the mailbox, unless its number is the reply's.
    pub const PENDING_MAILBOX: u32 = 1;
    /// Pending bit: a connection was made or its other end wrote its record. [`CHANGED`] has had
    /// its bit before.
    pub const PENDING_CONNECT: u32 = 2;
    /// Pending bit: show that you live by letting [`HEARTBEAT`] grow.
    pub const PENDING_PING: u32 = 4;

    /// The call page: see [`crate::hypercall`].
    pub const CALL: usize = 2 * PAGE;
    /// Pages of the call page.
    pub const CALL_PAGES: usize = 2;
    /// The grant table: entries of 8 bytes, see [`crate::classic::GrantEntry`].
    pub const GRANT_TABLE: usize = 4 * PAGE;

    /// Bytes that a configuration may have.
    pub const CONFIG_MAX: usize = 16 << 20;

    /// Where the domain's configuration begins, behind a grant table of `entries` entries: opaque
    /// bytes (JSON) that the monitor passes on.
    #[must_use]
    pub const fn config(entries: u32) -> usize {
        GRANT_TABLE + (entries as usize * 8).next_multiple_of(PAGE)
    }

    /// Bytes of INFO with a grant table of `entries` entries and so much configuration, in whole
    /// pages.
    #[must_use]
    pub const fn bytes(entries: u32, config_bytes: usize) -> usize {
        config(entries) + config_bytes.next_multiple_of(PAGE)
    }
}

/// Descriptor numbers that every domain starts with; 0, 1 and 2 are its standard streams
/// (input empty, output and errors a pipe to the monitor).
pub mod fd {
    /// The domain's own eventfd, readable when somebody rang.
    pub const EVENT: i32 = 3;
    /// An epoll set that the monitor fills: the eventfd with data [`EPOLL_EVENT`], by edges, and
    /// every attached device with its number as data, by level.
    pub const EPOLL: i32 = 4;
    /// Data of the eventfd in the epoll set.
    pub const EPOLL_EVENT: u64 = u64::MAX;
    /// Devices that were attached lie at this number plus their own.
    pub const DEVICE: i32 = 16;
    /// The doorbell (eventfd) of connection `n`'s other end lies at this number plus `n`. The
    /// filter lets a domain `write` to descriptors from here on, and nothing else: who could
    /// `read` a doorbell could steal its owner's wake-ups.
    pub const DOORBELL: i32 = 512;
    /// Devices that a domain may have.
    pub const DEVICES_MAX: u32 = (DOORBELL - DEVICE) as u32;
    /// Connections that a domain may have.
    pub const CONNECTIONS_MAX: u32 = 1024;
}
