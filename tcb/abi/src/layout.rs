//! The address map of a domain. The monitor creates it before the domain's first instruction. Each
//! range has only the use below, so no Rust object ever lies inside one.
//!
//! ```text
//! 0x5d00_0000_0000  INFO     start info, shared words, call page, grant table, config
//! 0x5d80_0000_0000  MAILBOX  requests to the domain, and its replies
//! 0x5e00_0000_0000  FRAMES   the domain's own page frames (what it may grant)
//! 0x5f00_0000_0000  STUB     the agent's code and its argument pages (sealed, read-only here)
//! 0x6000_0000_0000  WINDOW   other domains' granted pages; only the agent maps here
//! 0x7000_0000_0000  FOREIGN  memory files of a virtual machine; only the agent maps here
//! ```
//!
//! INFO and FRAMES are shared with the core only. The domain may overwrite INFO at any time, so the
//! core copies each value once and checks the copy. MAILBOX is shared with the manager; the core
//! does not read it.

pub mod mailbox;

/// Size of a page and of a page frame, in bytes.
pub const PAGE: usize = 4096;

/// Start of the information region.
pub const INFO: usize = 0x5d00_0000_0000;
/// Start of the mailbox.
pub const MAILBOX: usize = 0x5d80_0000_0000;
/// Start of the domain's own page frames.
pub const FRAMES: usize = 0x5e00_0000_0000;
/// Start of the agent's stub (one page) and of its argument pages.
pub const STUB: usize = 0x5f00_0000_0000;
/// Start of the grant window. Aligned to 4 GiB, so that a filter can check the high word alone.
pub const WINDOW: usize = 0x6000_0000_0000;
/// Start of the range for foreign memory: files whose descriptors a shim domain received from the
/// virtual machine monitor that it serves. Aligned to its length, so that a filter can check the
/// high word alone.
pub const FOREIGN: usize = 0x7000_0000_0000;
/// Size of the range for foreign memory, in pages.
pub const FOREIGN_PAGES: u32 = 1 << 30;
/// The maximum number of a domain's mappings of foreign memory.
pub const FOREIGN_REGIONS_MAX: usize = 64;
/// The maximum number of slots of a window. The addresses of all slots have the same high word.
pub const WINDOW_SLOTS_MAX: u32 = 1 << 20;
/// The maximum number of frames of a domain.
pub const FRAMES_MAX: u32 = 1 << 20;

/// Size of the largest ring entry of a device in a window, in bytes.
pub const RING_ENTRY_BYTES: usize = 16;

/// Returns the number of window slots that are reserved for each ring of `entries` entries,
/// including one for its header.
#[must_use]
pub const fn ring_slots(entries: u32) -> u32 {
    1 + (entries * RING_ENTRY_BYTES as u32).div_ceil(PAGE as u32)
}

/// Offsets of words within INFO, in bytes. The monitor writes `START_*` before the domain starts.
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
    /// u64: devices that can be attached: [`crate::hypercall::AttachTarget::Device`] 0 … n-1.
    pub const START_DEVICES: usize = 0x30;
    /// u64: the set of CPUs that the domain may run on, one bit each (CPUs 0 … 63).
    pub const START_CPUS: usize = 0x38;
    /// u64: rate of the time stamp counter in Hz, so that domains need not measure it; 0 if
    /// unknown.
    pub const START_TSC_HZ: usize = 0x40;
    /// u64: [`crate::version::VERSION`] of the monitor. The offset of this word is the same in
    /// every version, as is the magic's.
    pub const START_VERSION: usize = 0x48;
    /// u64: maximum number of pages of foreign memory that the domain may have mapped.
    pub const START_FOREIGN_PAGES: usize = 0x50;
    /// "GRANTWAY" in ASCII, first letter in the lowest byte.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"GRANTWAY");

    /// u32: pending bits from the monitor, one per kind ([`PENDING_MAILBOX`] …). The domain takes
    /// them by swapping the word with 0.
    pub const PENDING: usize = PAGE;
    /// u32: 1 while the domain sleeps or is about to sleep; the monitor then writes to its eventfd.
    pub const ARMED: usize = PAGE + 4;
    /// u32: the CPU that the domain ran on last.
    pub const CPU: usize = PAGE + 8;
    /// u64: incremented in every iteration of the domain's main loop; see [`PENDING_PING`].
    pub const HEARTBEAT: usize = PAGE + 16;
    /// u64 words, one bit per connection: the connections to which [`PENDING_CONNECT`] refers. The
    /// domain clears the bits that it handles.
    pub const CHANGED: usize = PAGE + 192;
    const _: () = assert!(CHANGED + super::fd::CONNECTIONS_MAX as usize / 8 <= 2 * PAGE);

    /// Returns the offset of a connection's word in [`CHANGED`], and its bit there.
    #[must_use]
    pub const fn changed(conn: u32) -> (usize, u64) {
        (CHANGED + (conn / 64 * 8) as usize, 1 << (conn % 64))
    }

    /// Pending bit: the mailbox holds a request, unless the reply has the same number.
    pub const PENDING_MAILBOX: u32 = 1;
    /// Pending bit: a connection was added, or its other end wrote its record. The monitor sets the
    /// connection's bit in [`CHANGED`] first.
    pub const PENDING_CONNECT: u32 = 2;
    /// Pending bit: the domain must increment [`HEARTBEAT`].
    pub const PENDING_PING: u32 = 4;

    /// The call page: see [`crate::hypercall`].
    pub const CALL: usize = 2 * PAGE;
    /// Size of the call page in pages.
    pub const CALL_PAGES: usize = 2;
    /// The grant table: entries of 8 bytes, see [`crate::classic::GrantEntry`].
    pub const GRANT_TABLE: usize = 4 * PAGE;

    /// The maximum size of a configuration in bytes.
    pub const CONFIG_MAX: usize = 16 << 20;

    /// Returns the offset of the domain's configuration, which follows a grant table of `entries`
    /// entries. The monitor does not interpret its bytes, which are JSON.
    #[must_use]
    pub const fn config(entries: u32) -> usize {
        GRANT_TABLE + (entries as usize * 8).next_multiple_of(PAGE)
    }

    /// Returns the size of INFO in bytes, a multiple of the page size, with a grant table of
    /// `entries` entries and a configuration of `config_bytes` bytes.
    #[must_use]
    pub const fn bytes(entries: u32, config_bytes: usize) -> usize {
        config(entries) + config_bytes.next_multiple_of(PAGE)
    }
}

/// Descriptor numbers of every domain. Numbers 0, 1 and 2 are its standard streams: the input is
/// empty, and output and errors are a pipe to the monitor.
pub mod fd {
    /// The domain's own eventfd, which is readable after its doorbell was rung.
    pub const EVENT: i32 = 3;
    /// An epoll set, to which the monitor adds the eventfd with data [`EPOLL_EVENT`],
    /// edge-triggered, and every attached device with its number as data, level-triggered.
    pub const EPOLL: i32 = 4;
    /// Data of the eventfd in the epoll set.
    pub const EPOLL_EVENT: u64 = u64::MAX;
    /// The descriptor of attached device `n` is this number plus `n`.
    pub const DEVICE: i32 = 16;
    /// The doorbell (eventfd) of connection `n`'s other end is this number plus `n`. The filter
    /// permits only `write` on this descriptor and all higher ones, because a domain that could
    /// `read` a doorbell could consume its owner's wake-ups.
    pub const DOORBELL: i32 = 512;
    /// The maximum number of devices of a domain.
    pub const DEVICES_MAX: u32 = (DOORBELL - DEVICE) as u32;
    /// The maximum number of connections of a domain.
    pub const CONNECTIONS_MAX: u32 = 1024;
}
