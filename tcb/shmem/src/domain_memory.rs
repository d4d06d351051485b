//! The memory of the domain that this process runs as.

use crate::area::Area;
use crate::span::Span;
use abi::layout::{self, info, mailbox};
use abi::version::{OWNER, VERSION, VERSION_NOTE};
use abi::{DomId, PAGE};
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{FromRawFd, OwnedFd};

/// The memory that the monitor mapped before the first instruction: see [`abi::layout`].
#[derive(Clone, Copy, Debug)]
pub struct DomainMemory {
    /// Start info, shared words, call page, configuration and grant table; [`abi::layout::info`]
    /// has the offsets.
    pub info: Area,
    /// The mailbox; [`abi::layout::mailbox`] has the offsets.
    pub mailbox: Area,
    /// The domain's own page frames.
    pub frames: Area,
    /// The grant window, which contains mapped pages of other domains. Accesses to the rest of it
    /// fault.
    pub window: Area,
    /// The range for foreign memory ([`abi::hypercall::HypercallKind::ForeignMap`]), which may be
    /// empty.
    pub foreign: Area,
    /// The domain's own id.
    pub domain: DomId,
    /// Entries of the grant table.
    pub grant_entries: u32,
    /// Size of the configuration in bytes: see [`DomainMemory::config`].
    pub config_bytes: usize,
    /// The number of devices that can be attached.
    pub devices: u32,
    /// The CPUs that the domain may run on, one bit each.
    pub cpus: u64,
}

impl DomainMemory {
    /// Returns the domain's configuration.
    #[must_use]
    pub fn config(&self) -> Span {
        let info = self.info.span();
        info.skip(info::config(self.grant_entries))
            .take(self.config_bytes)
    }
}

/// Error: this process cannot run as a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotADomain {
    /// The start info is missing.
    NoStartInfo,
    /// The monitor has another version.
    Version(u64),
    /// The start info is invalid.
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
            Self::BadStartInfo => f.write_str("the start info is invalid"),
            Self::Taken => f.write_str("the domain's memory has already been taken"),
        }
    }
}

impl core::error::Error for NotADomain {}

/// The ELF note of a domain's program.
#[repr(C)]
struct VersionNote {
    owner_bytes: u32,
    description_bytes: u32,
    kind: u32,
    /// Padded to a multiple of four bytes.
    owner: [u8; 12],
    version: u32,
}

impl VersionNote {
    /// The note of all programs that are built with this crate.
    const OWN: Self = Self {
        owner_bytes: OWNER.len() as u32,
        description_bytes: 4,
        kind: VERSION_NOTE,
        owner: *b"Grantway\0\0\0\0",
        version: VERSION,
    };
}

/// The note in the program's file, which the monitor reads before it starts the program.
#[used]
// SAFETY: the section contains only notes, and this is a complete note, aligned as its length
// requires.
#[unsafe(link_section = ".note.grantway")]
static NOTE: VersionNote = VersionNote::OWN;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns whether this process is a domain that has taken its memory.
pub(crate) fn is_taken() -> bool {
    TAKEN.load(Ordering::Acquire)
}

/// Takes the domain's memory and installs the fault handler. Succeeds only once.
///
/// # Errors
/// Returns [`NotADomain`] if the monitor did not start this process, or on a second call.
pub fn take() -> Result<DomainMemory, NotADomain> {
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
    let at_most = |offset, max: u64| match word(offset)? {
        value if value <= max => Ok(value),
        _ => Err(NotADomain::BadStartInfo),
    };
    let domain = at_most(info::START_DOMAIN, u16::MAX.into())? as u16;
    let frames = at_most(info::START_FRAMES, layout::FRAMES_MAX.into())? as usize;
    let slots = at_most(info::START_WINDOW_SLOTS, layout::WINDOW_SLOTS_MAX.into())? as usize;
    let grant_entries = at_most(info::START_GRANT_ENTRIES, layout::FRAMES_MAX.into())? as u32;
    let config_bytes = at_most(info::START_CONFIG_BYTES, info::CONFIG_MAX as u64)? as usize;
    let devices = at_most(info::START_DEVICES, layout::fd::DEVICES_MAX.into())? as u32;
    let foreign = match at_most(info::START_FOREIGN_PAGES, layout::FOREIGN_PAGES.into())? {
        0 => 0,
        _ => layout::FOREIGN_PAGES as usize,
    };
    let cpus = word(info::START_CPUS)?;
    let tsc_hz = word(info::START_TSC_HZ)?;
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Err(NotADomain::Taken);
    }
    crate::time::set_tsc_hz(tsc_hz);
    Ok(DomainMemory {
        info: Area::at_fixed(layout::INFO, info::bytes(grant_entries, config_bytes)),
        mailbox: Area::at_fixed(layout::MAILBOX, mailbox::BYTES),
        frames: Area::at_fixed(layout::FRAMES, frames * PAGE),
        window: Area::at_fixed(layout::WINDOW, slots * PAGE),
        foreign: Area::at_fixed(layout::FOREIGN, foreign * PAGE),
        domain: DomId(domain),
        grant_entries,
        config_bytes,
        devices,
        cpus,
    })
}

/// The descriptors with which every domain starts.
#[derive(Debug)]
pub struct Descriptors {
    /// The eventfd, which is readable after the doorbell was rung ([`layout::fd::EVENT`]).
    pub event: OwnedFd,
    /// The epoll set on which the domain waits ([`layout::fd::EPOLL`]).
    pub epoll: OwnedFd,
}

/// Takes the descriptors of the domain that this process runs as. Returns `None` before [`take`],
/// and after the first call.
#[must_use]
pub fn descriptors() -> Option<Descriptors> {
    static DESCRIPTORS_TAKEN: AtomicBool = AtomicBool::new(false);
    if !is_taken() || DESCRIPTORS_TAKEN.swap(true, Ordering::AcqRel) {
        return None;
    }
    // SAFETY: the monitor opened both for this process before its first instruction, no other code
    // owns them, and this line is executed only once.
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
    fn a_process_outside_a_domain_has_no_memory() {
        assert_eq!(take().unwrap_err(), NotADomain::NoStartInfo);
        assert!(!is_taken());
        assert!(descriptors().is_none());
    }
}
