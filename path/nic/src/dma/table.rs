//! The I/O page table: the pages that a device may access.

use super::addr::IoAddr;
use abi::PAGE;
use shmem::{Area, Span};

/// Error of an access by a device: a page is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("I/O fault at {address}, {len} bytes")]
pub struct IoFault {
    /// Start address of the access.
    pub address: IoAddr,
    /// Length of the access in bytes.
    pub len: usize,
}

/// The memory that a device may access, by I/O address.
pub trait IoMemory {
    /// Calls `act` with the memory of a range, which stays accessible until `act` returns.
    ///
    /// # Errors
    /// Returns an error if a page of the range is not mapped; `act` is then not called.
    fn access<T>(
        &self,
        address: IoAddr,
        len: usize,
        act: impl FnOnce(Span) -> T,
    ) -> Result<T, IoFault>;
}

/// Reason why a change to the table failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The range lies outside the table's areas.
    #[error("the range is outside the table")]
    Outside,
    /// A page of the range is not mapped.
    #[error("a page of the range is not mapped")]
    NotMapped,
    /// The mapping count of a page of the range would overflow.
    #[error("a page of the range is mapped too often")]
    TooManyMappings,
}

/// An area of memory, and the number of its first I/O page.
#[derive(Clone, Copy, Debug)]
struct IoRegion {
    first: u64,
    area: Area,
}

/// An I/O page table. Areas have fixed I/O addresses, and a device can access a page of an area
/// while the page is mapped. A page with several buffers may be mapped several times. It stays
/// accessible until it was unmapped the same number of times.
#[derive(Debug, Default)]
pub struct IoTable {
    regions: Vec<IoRegion>,
    /// Mapping count of each I/O page.
    mapped: Vec<u32>,
}

impl IoTable {
    /// Assigns I/O addresses to the whole pages of `area`, and returns the first. Maps nothing.
    pub fn add(&mut self, area: Area) -> IoAddr {
        let first = self.mapped.len();
        self.mapped.resize(first + area.len() / PAGE, 0);
        let first = first as u64;
        self.regions.push(IoRegion { first, area });
        IoAddr::from_bits(first * PAGE as u64)
    }

    /// Returns the I/O address of `span`, or `None` if it lies outside the areas.
    #[must_use]
    pub fn address(&self, span: Span) -> Option<IoAddr> {
        self.regions.iter().find_map(|region| {
            let offset = span.addr().checked_sub(region.area.span().addr())?;
            region.area.at(offset, span.len())?;
            IoAddr::from_bits(region.first * PAGE as u64).add(offset)
        })
    }

    /// Increments the mapping count of each page of a range.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if a page lies outside the areas or its count would
    /// overflow.
    pub fn map(&mut self, address: IoAddr, len: usize) -> Result<(), MapError> {
        let counts = self.counts_mut(address, len)?;
        if counts.contains(&u32::MAX) {
            return Err(MapError::TooManyMappings);
        }
        counts.iter_mut().for_each(|count| *count += 1);
        Ok(())
    }

    /// Decrements the mapping count of each page of a range.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if a page is not mapped.
    pub fn unmap(&mut self, address: IoAddr, len: usize) -> Result<(), MapError> {
        let counts = self.counts_mut(address, len)?;
        if counts.contains(&0) {
            return Err(MapError::NotMapped);
        }
        counts.iter_mut().for_each(|count| *count -= 1);
        Ok(())
    }

    /// Returns the memory of a range.
    ///
    /// # Errors
    /// Returns an error if a page is not mapped.
    #[inline]
    pub fn at(&self, address: IoAddr, len: usize) -> Result<Span, IoFault> {
        let fault = IoFault { address, len };
        let counts = pages(address, len).and_then(|pages| self.mapped.get(pages));
        let mapped = counts.is_some_and(|counts| !counts.contains(&0));
        let span = self.span(address, len);
        span.filter(|_| mapped && len > 0).ok_or(fault)
    }

    /// Returns the number of mapped pages.
    #[must_use]
    pub fn mapped_pages(&self) -> usize {
        self.mapped.iter().filter(|count| **count > 0).count()
    }

    fn counts_mut(&mut self, address: IoAddr, len: usize) -> Result<&mut [u32], MapError> {
        let within = self.span(address, len).is_some();
        let pages = pages(address, len).filter(|_| within);
        let counts = pages.and_then(|pages| self.mapped.get_mut(pages));
        counts.ok_or(MapError::Outside)
    }

    /// Returns the memory of a range, whether or not it is mapped.
    #[inline]
    fn span(&self, address: IoAddr, len: usize) -> Option<Span> {
        let after = self
            .regions
            .partition_point(|region| region.first <= address.page());
        let region = self.regions.get(after.checked_sub(1)?)?;
        let page = usize::try_from(address.page() - region.first).ok()?;
        let offset = page.checked_mul(PAGE)?.checked_add(address.offset())?;
        // An incomplete last page has no I/O address.
        let whole = region.area.len() / PAGE * PAGE;
        region.area.part(0, whole)?.at(offset, len)
    }
}

impl IoMemory for IoTable {
    #[inline]
    fn access<T>(
        &self,
        address: IoAddr,
        len: usize,
        act: impl FnOnce(Span) -> T,
    ) -> Result<T, IoFault> {
        self.at(address, len).map(act)
    }
}

/// Returns the numbers of the pages of a range.
#[inline]
pub(super) fn pages(address: IoAddr, len: usize) -> Option<std::ops::Range<usize>> {
    let first = usize::try_from(address.page()).ok()?;
    let pages = address.offset().checked_add(len)?.div_ceil(PAGE);
    Some(first..first.checked_add(pages)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(pages: usize) -> Area {
        Area::anonymous(pages * PAGE).unwrap()
    }

    /// D-3, D-4.
    #[test]
    fn only_mapped_pages_are_accessible() {
        let mut table = IoTable::default();
        let (one, two) = (area(2), area(1));
        assert_eq!(table.add(one), IoAddr::of_page(0));
        let at = table.add(two);
        assert_eq!(at, IoAddr::of_page(2));
        assert_eq!(table.address(two.span()), Some(at));
        assert!(table.at(at, 1).is_err());
        table.map(at, 1).unwrap();
        assert_eq!(table.at(at, PAGE), Ok(two.span()));
        assert_eq!(table.mapped_pages(), 1);
        // The page before and the memory after the mapped page are inaccessible.
        let before = IoAddr::of_page(1);
        for (address, len) in [(before, 1), (before, PAGE + 1), (at, PAGE + 1), (at, 0)] {
            assert_eq!(table.at(address, len), Err(IoFault { address, len }));
        }
        let far = IoAddr::from_bits(u64::MAX);
        for len in [1, usize::MAX] {
            assert!(table.at(far, len).is_err() && table.map(far, len).is_err());
        }
        table.unmap(at, 1).unwrap();
        assert!(table.at(at, 1).is_err());
        assert_eq!(table.unmap(at, 1), Err(MapError::NotMapped));
    }

    /// Areas that happen to be adjacent in this process are separate for the device.
    #[test]
    fn range_in_two_areas_is_rejected() {
        let mut table = IoTable::default();
        let both = area(2);
        table.add(both.part(0, PAGE).unwrap());
        table.add(both.part(PAGE, PAGE).unwrap());
        assert_eq!(table.address(both.span()), None);
        let across = IoAddr::of_page(0);
        assert_eq!(table.map(across, 2 * PAGE), Err(MapError::Outside));
    }

    #[test]
    fn shared_page_stays_mapped_until_both_are_unmapped() {
        let mut table = IoTable::default();
        let at = table.add(area(1));
        let second = at.add(PAGE / 2).unwrap();
        table.map(at, PAGE / 2).unwrap();
        table.map(second, PAGE / 2).unwrap();
        table.unmap(at, PAGE / 2).unwrap();
        assert!(table.at(at, PAGE).is_ok());
        table.unmap(second, PAGE / 2).unwrap();
        assert!(table.at(second, 1).is_err());
    }
}
