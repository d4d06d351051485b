//! The memory of the domain that this process runs as.

use crate::area::Area;
use crate::span::Span;
use abi::layout::{self, info, mailbox};
use abi::version::{OWNER, VERSION, VERSION_NOTE};
use abi::{DomId, PAGE};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{FromRawFd, OwnedFd};

/// What the monitor laid out before the first instruction: see [`abi::layout`].
#[derive(Clone, Copy, Debug)]
pub struct Home {
    /// Start info, shared words, call page, configuration and grant table; offsets in
    /// [`abi::layout::info`].
    pub info: Area,
    /// Offsets in [`abi::layout::mailbox`].
    pub mailbox: Area,
    /// The domain's own page frames.
    pub frames: Area,
    /// The grant window: pages of others that were mapped; everything else in it faults.
    pub window: Area,
    /// The domain's own id.
    pub domain: DomId,
    /// Entries of the grant table.
    pub grant_entries: u32,
    /// Bytes of the configuration: see [`Home::config`].
    pub config_bytes: usize,
    /// Devices that can be attached.
    pub devices: u32,
    /// The CPUs that the domain may run on, one bit each.
    pub cpus: u64,
}

impl Home {
    /// The domain's configuration.
    #[must_use]
    pub fn config(&self) -> Span {
        let info = self.info.span();
        info.skip(info::config(self.grant_entries))
            .take(self.config_bytes)
    }
}

/// This process was not started as a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotADomain {
    /// There is no start info.
    NoStartInfo,
    /// The monitor is of another version.
    Version(u64),
    /// The start info makes no sense.
    BadStartInfo,
    /// [`take`] was called before.
    Taken,
}

impl fmt::Display for NotADomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStartInfo => {
                f.write_str("this program is a domain: it must be started by grantwayd")
            }
            Self::Version(monitor) => write!(
                f,
                "grantwayd starts domains of version {monitor}, this program is one of version \
                 {VERSION}: both must be of one build"
            ),
            Self::BadStartInfo => f.write_str("the start info makes no sense"),
            Self::Taken => f.write_str("the domain's memory was taken before"),
        }
    }
}

impl core::error::Error for NotADomain {}

/// The note that a domain's program carries.
#[repr(C)]
struct VersionNote {
    owner_bytes: u32,
    description_bytes: u32,
    kind: u32,
    /// Padded to a multiple of four.
    owner: [u8; 12],
    version: u32,
}

impl VersionNote {
    /// Of a program that is built with this crate.
    const OWN: Self = Self {
        owner_bytes: OWNER.len() as u32,
        description_bytes: 4,
        kind: VERSION_NOTE,
        owner: *b"Grantway\0\0\0\0",
        version: VERSION,
    };
}

/// What the program's file says of it: the monitor looks before it starts the program.
#[used]
// SAFETY: the section holds notes alone, and this is one, whole and aligned as its length demands.
#[unsafe(link_section = ".note.grantway")]
static NOTE: VersionNote = VersionNote::OWN;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Whether this process is a domain that has taken its memory.
pub(crate) fn is_taken() -> bool {
    TAKEN.load(Ordering::Acquire)
}

/// The domain's memory: once. Installs the fault handler.
///
/// # Errors
/// [`NotADomain`] if the monitor did not start this process, or on a second call.
pub fn take() -> Result<Home, NotADomain> {
    crate::fault::install_fault_handler();
    let start = Span::new(layout::INFO, PAGE);
    let word = |offset| start.load_u64(offset).map_err(|_| NotADomain::NoStartInfo);
    if word(info::START_MAGIC)? != info::MAGIC {
        return Err(NotADomain::NoStartInfo);
    }
    match word(info::START_VERSION)? {
        version if version == u64::from(VERSION) => {}
        version => return Err(NotADomain::Version(version)),
    }
    let at_most = |offset, most: u64| match word(offset)? {
        value if value <= most => Ok(value),
        _ => Err(NotADomain::BadStartInfo),
    };
    let domain = at_most(info::START_DOMAIN, u16::MAX.into())? as u16;
    let frames = at_most(info::START_FRAMES, layout::FRAMES_MAX.into())? as usize;
    let slots = at_most(info::START_WINDOW_SLOTS, layout::WINDOW_SLOTS_MAX.into())? as usize;
    let grant_entries = at_most(info::START_GRANT_ENTRIES, layout::FRAMES_MAX.into())? as u32;
    let config_bytes = at_most(info::START_CONFIG_BYTES, info::CONFIG_MAX as u64)? as usize;
    let devices = at_most(info::START_DEVICES, layout::fd::DEVICES_MAX.into())? as u32;
    let cpus = word(info::START_CPUS)?;
    let tsc_hz = word(info::START_TSC_HZ)?;
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Err(NotADomain::Taken);
    }
    crate::time::set_tsc_hz(tsc_hz);
    Ok(Home {
        info: Area::at_fixed(layout::INFO, info::bytes(grant_entries, config_bytes)),
        mailbox: Area::at_fixed(layout::MAILBOX, mailbox::BYTES),
        frames: Area::at_fixed(layout::FRAMES, frames * PAGE),
        window: Area::at_fixed(layout::WINDOW, slots * PAGE),
        domain: DomId(domain),
        grant_entries,
        config_bytes,
        devices,
        cpus,
    })
}

/// The descriptors that every domain starts with.
#[derive(Debug)]
pub struct Descriptors {
    /// Readable when somebody rang ([`layout::fd::EVENT`]).
    pub event: OwnedFd,
    /// The set to wait on ([`layout::fd::EPOLL`]).
    pub epoll: OwnedFd,
}

/// The descriptors of the domain that this process runs as: once, after [`take`].
#[must_use]
pub fn descriptors() -> Option<Descriptors> {
    static GONE: AtomicBool = AtomicBool::new(false);
    if !is_taken() || GONE.swap(true, Ordering::AcqRel) {
        return None;
    }
    // SAFETY: the monitor opened both for this process before its first instruction, no other code
    // here owns them, and this point is passed once.
    let own = |number| unsafe { OwnedFd::from_raw_fd(number) };
    Some(Descriptors {
        event: own(layout::fd::EVENT),
        epoll: own(layout::fd::EPOLL),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_a_domain_there_is_no_home() {
        assert_eq!(take().unwrap_err(), NotADomain::NoStartInfo);
        assert!(!is_taken());
        assert!(descriptors().is_none());
    }
}
