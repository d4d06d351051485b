//! The shim's system in an unconfined program.

use crate::VhostSystem;
use shmem::{Mapping, Span};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// The system of a test: maps memory directly, and records mappings and watched descriptors.
#[derive(Debug, Default)]
pub struct ProcessSystem {
    /// The mapped regions.
    pub mappings: Vec<Mapping>,
    /// Descriptors that wake the shim, and whether each does so by edges.
    pub watched: Vec<(RawFd, bool)>,
}

impl VhostSystem for ProcessSystem {
    fn map(&mut self, file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<Span> {
        let mapping = Mapping::new(file, offset, bytes as usize)?;
        let span = mapping.span();
        self.mappings.push(mapping);
        Ok(span)
    }

    fn unmap(&mut self, region: Span) {
        self.mappings.retain(|mapping| mapping.span() != region);
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, edges: bool) -> io::Result<()> {
        self.watched.push((fd.as_raw_fd(), edges));
        Ok(())
    }

    fn unwatch(&mut self, fd: BorrowedFd<'_>) {
        self.watched.retain(|(number, _)| *number != fd.as_raw_fd());
    }
}
