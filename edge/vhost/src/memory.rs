//! Regions of a virtual machine's memory.

use crate::ProtocolError;
use crate::log::DirtyLog;
use crate::system::VhostSystem;
use abi::PAGE;
use shmem::Span;
use std::cell::Cell;
use std::os::fd::BorrowedFd;

/// Maximum number of regions of a virtual machine.
pub const REGIONS_MAX: usize = 32;

/// A region of memory as the front end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionDescription {
    /// First guest physical address.
    pub gpa: u64,
    /// Bytes.
    pub bytes: u64,
    /// First address in the front end's address space, which ring addresses refer to.
    pub uva: u64,
    /// Offset of the region in its file.
    pub offset: u64,
}

impl RegionDescription {
    /// Returns whether the region is not empty, consists of whole pages, and does not wrap.
    fn is_sound(&self) -> bool {
        let page = PAGE as u64;
        let in_pages = |number: u64| number.is_multiple_of(page);
        let ends = |start: u64| start.checked_add(self.bytes).is_some();
        self.bytes > 0
            && [self.gpa, self.bytes, self.uva, self.offset]
                .into_iter()
                .all(in_pages)
            && [self.gpa, self.uva, self.offset].into_iter().all(ends)
    }

    fn overlaps(&self, other: &Self) -> bool {
        let meet =
            |a: u64, b: u64| a < b.saturating_add(other.bytes) && b < a.saturating_add(self.bytes);
        meet(self.gpa, other.gpa) || meet(self.uva, other.uva)
    }
}

#[derive(Clone, Copy, Debug)]
struct VmRegion {
    description: RegionDescription,
    span: Span,
}

/// A virtual machine's memory as the shim has mapped it.
#[derive(Debug, Default)]
pub struct VmMemory {
    regions: Vec<VmRegion>,
    bytes_max: u64,
    /// Region that contained the last address.
    last: Cell<usize>,
    log: Option<DirtyLog>,
    /// Whether writes are logged.
    logs: bool,
    /// Address of the first write for which the log has no bit.
    unlogged: Cell<Option<u64>>,
}

impl VmMemory {
    /// Creates an empty memory, which may map at most `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            ..Self::default()
        }
    }

    /// Returns whether exactly these regions are mapped.
    pub(crate) fn has_regions(&self, regions: &[RegionDescription]) -> bool {
        self.regions.len() == regions.len() && regions.iter().all(|region| self.has(region))
    }

    fn has(&self, region: &RegionDescription) -> bool {
        self.regions
            .iter()
            .any(|known| known.description == *region)
    }

    /// Maps one more region. Ignores one that is already mapped, because QEMU sends each region
    /// once for every queue pair.
    ///
    /// # Errors
    /// Returns an error if the region is invalid or exceeds the bounds, or the system did not map
    /// it.
    pub fn add(
        &mut self,
        region: RegionDescription,
        file: BorrowedFd<'_>,
        system: &mut dyn VhostSystem,
    ) -> Result<(), ProtocolError> {
        if self.has(&region) {
            return Ok(());
        }
        let overlaps = |known: &VmRegion| known.description.overlaps(&region);
        if !region.is_sound() || self.regions.iter().any(overlaps) {
            let RegionDescription { gpa, bytes, .. } = region;
            return Err(ProtocolError::Region { gpa, bytes });
        }
        let sizes = self.regions.iter().map(|known| known.description.bytes);
        // Each region is valid, but their sum may still exceed 2^64.
        let sum = sizes.chain([region.bytes]).try_fold(0, u64::checked_add);
        if self.regions.len() >= REGIONS_MAX || sum.is_none_or(|sum| sum > self.bytes_max) {
            return Err(ProtocolError::Memory {
                regions: REGIONS_MAX,
                bytes: self.bytes_max,
            });
        }
        let span = system
            .map(file, region.offset, region.bytes)
            .map_err(ProtocolError::Map)?;
        self.regions.push(VmRegion {
            description: region,
            span,
        });
        Ok(())
    }

    /// Unmaps a region, if it is mapped.
    pub fn remove(&mut self, region: &RegionDescription, system: &mut dyn VhostSystem) {
        // The offset is ignored, because a front end need not repeat it.
        let is_it = |known: &VmRegion| {
            let known = known.description;
            (known.gpa, known.bytes, known.uva) == (region.gpa, region.bytes, region.uva)
        };
        if let Some(at) = self.regions.iter().position(is_it) {
            system.unmap(self.regions.swap_remove(at).span);
        }
    }

    /// Unmaps all regions, but keeps the log.
    pub fn clear(&mut self, system: &mut dyn VhostSystem) {
        for region in self.regions.drain(..) {
            system.unmap(region.span);
        }
    }

    /// Replaces the log.
    pub fn set_log(&mut self, log: Option<DirtyLog>, system: &mut dyn VhostSystem) {
        if let Some(old) = std::mem::replace(&mut self.log, log) {
            old.unmap(system);
        }
    }

    /// Returns the memory at a guest physical address: `bytes` bytes, or fewer if the region ends
    /// sooner.
    #[must_use]
    #[inline]
    pub fn at(&self, gpa: u64, bytes: usize) -> Option<Span> {
        let found = |region: &VmRegion| {
            let inside = gpa.checked_sub(region.description.gpa)?;
            if inside >= region.description.bytes {
                return None;
            }
            Some(region.span.skip(inside as usize).take(bytes))
        };
        if let Some(span) = self.regions.get(self.last.get()).and_then(found) {
            return Some(span);
        }
        let mut all = self.regions.iter().enumerate();
        let (at, span) = all.find_map(|(at, region)| Some((at, found(region)?)))?;
        self.last.set(at);
        Some(span)
    }

    /// Returns the `bytes` bytes at an address in the front end's address space, with their guest
    /// physical address. They must lie in one region.
    #[must_use]
    pub fn at_uva(&self, uva: u64, bytes: usize) -> Option<(Span, u64)> {
        self.regions.iter().find_map(|region| {
            let inside = uva.checked_sub(region.description.uva)?;
            if inside >= region.description.bytes {
                return None;
            }
            let span = region.span.sub(inside as usize, bytes)?;
            Some((span, region.description.gpa + inside))
        })
    }

    /// Starts or stops logging.
    pub fn set_logging(&mut self, logs: bool) {
        self.logs = logs;
    }

    /// Returns whether writes must be logged but no log has arrived, so that no ring may run.
    pub(crate) fn lacks_log(&self) -> bool {
        self.logs && self.log.is_none()
    }

    /// Logs a write of `bytes` bytes at an address, if logging is active.
    #[inline]
    pub fn log_write(&self, gpa: u64, bytes: usize) {
        if self.logs {
            self.mark(gpa, bytes);
        }
    }

    #[cold]
    fn mark(&self, gpa: u64, bytes: usize) {
        let is_logged = self.log.is_some_and(|log| log.mark(gpa, bytes));
        if !is_logged && self.unlogged.get().is_none() {
            self.unlogged.set(Some(gpa));
        }
    }

    /// Checks that every write so far was logged. After a missing write, the virtual machine's
    /// memory would be corrupt at the destination.
    ///
    /// # Errors
    /// Returns an error if the log is shorter than the memory, or the front end has truncated it.
    pub(crate) fn check_log(&self) -> Result<(), ProtocolError> {
        match self.unlogged.get() {
            None => Ok(()),
            Some(gpa) => Err(ProtocolError::Unlogged(gpa)),
        }
    }
}
