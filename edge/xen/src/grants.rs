//! Access to a guest's pages by Xen's grant copy: one request to the kernel for a whole batch,
//! without mapping. Xen checks every grant; an invalid reference costs only its packet.
//!
//! Optionally, pages that a guest sends are mapped for a batch. Then nothing is copied on the way
//! to a NIC, but each batch needs four system calls, with which the kernel makes four hypercalls.

use crate::dev::{
    CopySegment, ForeignWindow, Gntdev, GrantedRange, MAPPED_MAX, Mapped, PageRights,
};
use abi::{GrantRef, GrantStatus, PAGE};
use nic::Frame;
use nic::frame::SNAPSHOT_MAX;
use runtime::ledger::{Hop, Ledger};
use shmem::{Area, Span};
use std::io;
use std::rc::Rc;
use vif::grants::{CopyOut, CopySource, GrantAccess, GrantMechanism};
use vif::netback::ACCESSES_MAX;

/// Maximum number of headers in one batch of copies.
const HEADERS: usize = 256;

/// Memory of this process for the bytes of one guest.
#[derive(Clone, Copy, Debug)]
pub struct Staging {
    /// A page for each access of a batch.
    reads: Span,
    /// A cell for each header.
    headers: Span,
    /// A page for each copy from a mapped page of another guest.
    bounced: Span,
}

impl Staging {
    /// Allocates the memory, which is never freed.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is exhausted.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            reads: Area::anonymous(ACCESSES_MAX * PAGE)?.span(),
            headers: Area::anonymous(HEADERS * SNAPSHOT_MAX)?.span(),
            bounced: Area::anonymous(HEADERS * PAGE)?.span(),
        })
    }
}

/// The mechanism, for one guest.
#[derive(Debug)]
pub struct GrantCopy {
    device: Rc<Gntdev>,
    domain: u16,
    staging: Staging,
    /// Window of mapped guest pages, if any.
    mapped: Span,
    ledger: Rc<Ledger>,
    segments: Vec<CopySegment>,
    /// For each operation of the caller: its segment, or `None` if the operation is invalid.
    of: Vec<Option<usize>>,
}

impl GrantCopy {
    /// Returns the mechanism for the pages of `domain`. It uses `staging` exclusively. Mapped pages
    /// of guests lie in `mapped`.
    #[must_use]
    pub fn new(
        device: Rc<Gntdev>,
        domain: u16,
        staging: Staging,
        mapped: Span,
        ledger: Rc<Ledger>,
    ) -> Self {
        Self {
            device,
            domain,
            staging,
            mapped,
            ledger,
            segments: Vec::new(),
            of: Vec::new(),
        }
    }

    fn remote(&self, gref: GrantRef, offset: u16) -> GrantedRange {
        GrantedRange {
            domain: self.domain,
            gref: gref.0,
            offset,
        }
    }

    /// Returns the segment of a copy to the guest. `n` is its index in the batch.
    fn out(&self, n: usize, op: &CopyOut, frames: &[Frame]) -> Option<CopySegment> {
        let source = match op.source {
            CopySource::Span(span) if self.is_mapped(span) => self.bounce(n, span)?,
            CopySource::Span(span) => span,
            CopySource::Header { frame, from } => self.header(n, frames, frame, from, op.len)?,
        };
        let fits = source.len() == usize::from(op.len);
        fits.then(|| CopySegment::from_local(source, self.remote(op.gref, op.offset)))?
    }

    /// Returns whether `span` lies in a mapped page of another guest, from which Xen does not copy
    /// for this domain.
    fn is_mapped(&self, span: Span) -> bool {
        span.addr().wrapping_sub(self.mapped.addr()) < self.mapped.len()
    }

    /// Copies another guest's bytes to memory from which the kernel can copy them.
    fn bounce(&self, n: usize, span: Span) -> Option<Span> {
        let cell = self.staging.bounced.sub(n.checked_mul(PAGE)?, span.len())?;
        shmem::copy(cell, span).ok()?;
        Some(cell)
    }

    /// Writes header bytes to memory from which the kernel can copy them: back to where they were
    /// received, so that the rest of the frame follows them, or else into a cell.
    fn header(&self, n: usize, frames: &[Frame], frame: u32, from: u16, len: u16) -> Option<Span> {
        let (from, len) = (usize::from(from), usize::from(len));
        let frame = frames.get(frame as usize)?;
        let bytes = frame.header().get(from..from.checked_add(len)?)?;
        let written = |place: Span| place.write(bytes).is_ok().then_some(place);
        let own = self.below(frame).and_then(|place| place.sub(from, len));
        own.and_then(written).or_else(|| {
            let cell = self
                .staging
                .headers
                .sub(n.checked_mul(SNAPSHOT_MAX)?, len)?;
            written(cell)
        })
    }

    /// Returns the memory into which a frame's whole header was received, if it belongs to this
    /// domain.
    fn below(&self, frame: &Frame) -> Option<Span> {
        let bytes = frame.header().len();
        let first = frame.pieces.first()?.span.sub(0, bytes)?;
        (frame.covered() == bytes && !self.is_mapped(first)).then_some(first)
    }

    /// Adds an operation of the caller to the batch.
    fn add(&mut self, segment: Option<CopySegment>) {
        if let Some(segment) = segment {
            let joined = self
                .segments
                .last_mut()
                .is_some_and(|last| last.join(&segment));
            if !joined {
                self.segments.push(segment);
            }
        }
        let last = self.segments.len().checked_sub(1);
        self.of.push(segment.and(last));
    }

    /// Returns the result of operation `n` of the batch.
    fn status(&self, n: usize) -> GrantStatus {
        let segment = self.of.get(n).copied().flatten();
        let segment = segment.and_then(|at| self.segments.get(at));
        segment.map_or(GrantStatus::BadCopyArg, |segment| segment.copied().status())
    }

    fn run(&mut self) {
        if !self.segments.is_empty() {
            let Self {
                device, segments, ..
            } = self;
            self.ledger.call(|| device.copy(segments));
        }
    }
}

impl GrantMechanism for GrantCopy {
    fn read_begin(&mut self, accesses: &mut [GrantAccess]) {
        let before = self.ledger.enter(Hop::Copy);
        self.segments.clear();
        self.of.clear();
        for (n, access) in accesses.iter_mut().enumerate() {
            let page = self.staging.reads.sub(n * PAGE, access.len.into());
            let from = self.remote(access.gref, access.offset);
            self.add(page.and_then(|page| CopySegment::to_local(from, page)));
            access.result = page.ok_or(GrantStatus::NoSpace);
        }
        self.run();
        for (n, access) in accesses.iter_mut().enumerate() {
            match self.status(n) {
                GrantStatus::Okay => access.prefetch(),
                refused => access.result = Err(refused),
            }
        }
        self.ledger.enter(before);
    }

    fn read_end(&mut self) {}

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        let before = self.ledger.enter(Hop::Copy);
        // A batch has at most as many copies as cells for headers exist.
        for batch in copies.chunks_mut(HEADERS) {
            self.segments.clear();
            self.of.clear();
            for (n, op) in batch.iter().enumerate() {
                self.add(self.out(n, op, frames));
            }
            self.run();
            for (n, op) in batch.iter_mut().enumerate() {
                op.status = self.status(n);
            }
        }
        self.ledger.enter(before);
    }
}

/// The mechanism that maps packets from a guest for a batch. Packets to the guest are copied.
#[derive(Debug)]
pub struct GrantMap {
    copy: GrantCopy,
    /// Window with a page for each access of a batch.
    window: ForeignWindow,
    /// The mapped pages of the batch.
    mapped: Option<Mapped>,
}

impl GrantMap {
    /// Returns the mechanism for the guest of `copy`. The guest's pages are mapped in `window`.
    #[must_use]
    pub fn new(copy: GrantCopy, window: ForeignWindow) -> Self {
        Self {
            copy,
            window,
            mapped: None,
        }
    }
}

impl GrantMechanism for GrantMap {
    fn read_begin(&mut self, accesses: &mut [GrantAccess]) {
        // The window holds one batch.
        self.read_end();
        let GrantCopy { device, domain, .. } = &self.copy;
        let ledger = &self.copy.ledger;
        let before = ledger.enter(Hop::Grant);
        let grefs = accesses.iter().map(|access| access.gref);
        let mapped = ledger.call(|| device.map(*domain, grefs, self.window, PageRights::Read));
        ledger.enter(before);
        let Ok(mapped) = mapped else {
            // At least one page is not granted. Copying the pages instead finds those, and reads
            // all others.
            return self.copy.read_begin(accesses);
        };
        for (n, access) in accesses.iter_mut().enumerate() {
            let at = n * PAGE + usize::from(access.offset);
            let bytes = mapped.span().sub(at, access.len.into());
            access.result = bytes.ok_or(GrantStatus::BadCopyArg);
            access.prefetch();
        }
        self.mapped = Some(mapped);
    }

    fn read_end(&mut self) {
        if let Some(mapped) = self.mapped.take() {
            let ledger = &self.copy.ledger;
            let before = ledger.enter(Hop::Grant);
            ledger.call(|| drop(mapped));
            ledger.enter(before);
        }
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        self.copy.write(copies, frames);
    }
}

const _: () = assert!(ACCESSES_MAX <= MAPPED_MAX);
