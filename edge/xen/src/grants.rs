//! A guest's pages by Xen's grant copy: one request of the kernel's for a whole batch, nothing is
//! ever mapped. Xen checks every grant; a reference that is none costs its packet and no more.
//!
//! What a guest sends may be mapped instead, for the time of a batch: then nothing is copied on its
//! way to a NIC, but for each batch the kernel makes four hypercalls and is asked four times.

use crate::dev::{CopySegment, Gntdev, MAPPED_MAX, Mapped, PageRights, Remote, Window};
use abi::{GrantRef, GrantStatus, PAGE};
use nic::Frame;
use nic::frame::SNAPSHOT;
use runtime::ledger::{Hop, Ledger};
use shmem::{Area, Span};
use std::io;
use std::rc::Rc;
use vif::grants::{Access, CopyOut, Grants, Source};
use vif::netback::ACCESSES_MAX;

/// Headers that are copied out together.
const HEADERS: usize = 256;

/// Memory of ours that one guest's bytes go through.
#[derive(Clone, Copy, Debug)]
pub struct Staging {
    /// A page for each access of a batch.
    reads: Span,
    /// A cell for each header.
    headers: Span,
    /// A page for each copy of what another guest has sent and what is mapped.
    bounced: Span,
}

impl Staging {
    /// New memory, which is never given back.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            reads: Area::anonymous(ACCESSES_MAX * PAGE)?.span(),
            headers: Area::anonymous(HEADERS * SNAPSHOT)?.span(),
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
    /// Where pages of guests are mapped, if they are.
    mapped: Span,
    ledger: Rc<Ledger>,
    segments: Vec<CopySegment>,
    /// By operation of the caller's, the segment that it is in; none: it cannot be one.
    of: Vec<Option<usize>>,
}

impl GrantCopy {
    /// For the pages of `domain`, through `staging`, which nobody else uses. Pages of guests are
    /// mapped within `mapped`.
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

    fn remote(&self, gref: GrantRef, offset: u16) -> Remote {
        Remote {
            domain: self.domain,
            gref: gref.0,
            offset,
        }
    }

    /// The segment of a copy to the guest; `n` is its place among those that go together.
    fn out(&self, n: usize, op: &CopyOut, frames: &[Frame]) -> Option<CopySegment> {
        let source = match op.source {
            Source::Span(span) if self.is_mapped(span) => self.bounce(n, span)?,
            Source::Span(span) => span,
            Source::Header { frame, from } => self.header(n, frames, frame, from, op.len)?,
        };
        let fits = source.len() == usize::from(op.len);
        fits.then(|| CopySegment::from_us(source, self.remote(op.gref, op.offset)))?
    }

    /// Whether memory is another guest's page, which Xen would not copy for this domain.
    fn is_mapped(&self, span: Span) -> bool {
        span.addr().wrapping_sub(self.mapped.addr()) < self.mapped.len()
    }

    /// Copies what another guest sends to where the kernel can copy it from.
    fn bounce(&self, n: usize, span: Span) -> Option<Span> {
        let cell = self.staging.bounced.sub(n.checked_mul(PAGE)?, span.len())?;
        shmem::copy(cell, span).ok()?;
        Some(cell)
    }

    /// Puts header bytes where the kernel can copy them from: back to where they were received, so
    /// that the frame goes on behind them, or into a cell.
    fn header(&self, n: usize, frames: &[Frame], frame: u32, from: u16, len: u16) -> Option<Span> {
        let (from, len) = (usize::from(from), usize::from(len));
        let frame = frames.get(frame as usize)?;
        let bytes = frame.header().get(from..from.checked_add(len)?)?;
        let written = |place: Span| place.write(bytes).is_ok().then_some(place);
        let own = self.below(frame).and_then(|place| place.sub(from, len));
        own.and_then(written).or_else(|| {
            let cell = self.staging.headers.sub(n.checked_mul(SNAPSHOT)?, len)?;
            written(cell)
        })
    }

    /// The memory that a frame's whole header was received into, if it is this domain's.
    fn below(&self, frame: &Frame) -> Option<Span> {
        let bytes = frame.header().len();
        let first = frame.pieces.first()?.span.sub(0, bytes)?;
        (frame.covered() == bytes && !self.is_mapped(first)).then_some(first)
    }

    /// Adds an operation of the caller's to the batch.
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

    /// How operation `n` of the batch has ended.
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

impl Grants for GrantCopy {
    fn read_begin(&mut self, accesses: &mut [Access]) {
        let before = self.ledger.enter(Hop::Copy);
        self.segments.clear();
        self.of.clear();
        for (n, access) in accesses.iter_mut().enumerate() {
            let page = self.staging.reads.sub(n * PAGE, access.len.into());
            let from = self.remote(access.gref, access.offset);
            self.add(page.and_then(|page| CopySegment::to_us(from, page)));
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
        // As many at a time as have a place for their headers.
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

/// The mechanism that maps what a guest sends, for the time of a batch. What it is sent is copied.
#[derive(Debug)]
pub struct GrantMap {
    copy: GrantCopy,
    /// As many pages as a batch has accesses.
    window: Window,
    /// The batch's.
    mapped: Option<Mapped>,
}

impl GrantMap {
    /// For the guest of `copy`, whose pages are mapped in `window`.
    #[must_use]
    pub fn new(copy: GrantCopy, window: Window) -> Self {
        Self {
            copy,
            window,
            mapped: None,
        }
    }
}

impl Grants for GrantMap {
    fn read_begin(&mut self, accesses: &mut [Access]) {
        // What a window holds is one batch's.
        self.read_end();
        let GrantCopy { device, domain, .. } = &self.copy;
        let ledger = &self.copy.ledger;
        let before = ledger.enter(Hop::Grant);
        let grefs = accesses.iter().map(|access| access.gref);
        let mapped = ledger.call(|| device.map(*domain, grefs, self.window, PageRights::Read));
        ledger.enter(before);
        let Ok(mapped) = mapped else {
            // One of them is not granted: a copy tells which. All others are read.
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
