//! The monitor copies: one hypercall a batch, nothing is ever mapped.

use super::access::Guest;
use abi::classic::{Copy as CopyOp, Place};
use abi::{GrantStatus, PAGE};
use nic::Frame;
use nic::frame::SNAPSHOT;
use runtime::ledger::Hop;
use shmem::{Area, Span};
use vif::grants::{Access, CopyOut, Grants, Source};

/// Snapshots that fit into a page.
const HEADERS: usize = PAGE / SNAPSHOT;

/// The mechanism, for one guest.
#[derive(Debug)]
pub struct Copy {
    guest: Guest,
    /// All frames of this domain: what the monitor can copy from and to.
    frames: Area,
    /// Pages that what is read is copied into, one an access.
    reads: Span,
    /// Pages that headers are put into before they are copied out.
    headers: Span,
    ops: Vec<CopyOp>,
    /// Which operation of the caller's each of `ops` belongs to.
    of: Vec<u32>,
    status: Vec<GrantStatus>,
}

impl Copy {
    /// `frames` are all frames of this domain, `staging` a part of them that nobody else uses,
    /// from a page boundary on: one eighth holds headers, the rest what is read.
    #[must_use]
    pub fn new(guest: Guest, frames: Area, staging: Span) -> Self {
        let headers = (staging.len() / 8).next_multiple_of(PAGE);
        Self {
            guest,
            frames,
            reads: staging.skip(headers),
            headers: staging.take(headers),
            ops: Vec::new(),
            of: Vec::new(),
            status: Vec::new(),
        }
    }

    /// Where a byte of ours is, as the monitor sees it, and how many bytes its page still has.
    fn own(&self, span: Span) -> Option<(Place, u16, usize)> {
        let offset = span.addr().checked_sub(self.frames.span().addr())?;
        if offset.checked_add(span.len())? > self.frames.len() {
            return None;
        }
        let within = offset % PAGE;
        Some((
            Place::Own {
                frame: (offset / PAGE) as u32,
            },
            within as u16,
            PAGE - within,
        ))
    }

    /// Queues the copy of `source` (ours) to a granted page, cut where our pages end.
    fn queue(&mut self, n: usize, op: &CopyOut, source: Span) -> Option<()> {
        let dst = Place::Granted {
            domain: self.guest.domain,
            gref: op.gref,
        };
        let (mut rest, mut dst_offset) = (source, op.offset);
        while !rest.is_empty() {
            let (src, src_offset, room) = self.own(rest)?;
            let len = rest.len().min(room);
            self.ops.push(CopyOp {
                src,
                dst,
                src_offset,
                dst_offset,
                len: len as u16,
            });
            self.of.push(n as u32);
            rest = rest.skip(len);
            dst_offset = dst_offset.checked_add(len as u16)?;
        }
        Some(())
    }

    /// Puts the header bytes of an operation where the monitor can copy them from.
    fn header(&self, n: usize, frames: &[Frame], frame: u32, from: u16, len: u16) -> Option<Span> {
        let (from, len) = (usize::from(from), usize::from(len));
        let bytes = frames
            .get(frame as usize)?
            .header()
            .get(from..from.checked_add(len)?)?;
        let cell = self.headers.sub(n.checked_mul(SNAPSHOT)?, len)?;
        cell.write(bytes).ok()?;
        Some(cell)
    }

    fn run(&mut self) {
        self.status.clear();
        if !self.ops.is_empty() {
            self.guest
                .call(|calls| calls.copy(&self.ops, &mut self.status));
        }
    }
}

impl Grants for Copy {
    fn read_begin(&mut self, accesses: &mut [Access]) {
        let before = self.guest.ledger.enter(Hop::Copy);
        self.ops.clear();
        self.of.clear();
        for (n, access) in accesses.iter_mut().enumerate() {
            access.result = Err(GrantStatus::NoSpace);
            let Some(page) = self.reads.sub(n * PAGE, usize::from(access.len)) else {
                continue;
            };
            let Some((dst, dst_offset, _)) = self.own(page) else {
                continue;
            };
            self.ops.push(CopyOp {
                src: Place::Granted {
                    domain: self.guest.domain,
                    gref: access.gref,
                },
                dst,
                src_offset: access.offset,
                dst_offset,
                len: access.len,
            });
            self.of.push(n as u32);
        }
        self.run();
        for (n, status) in self.of.iter().zip(&self.status) {
            if let Some(access) = accesses.get_mut(*n as usize) {
                let page = self.reads.sub(*n as usize * PAGE, usize::from(access.len));
                access.result = match (status, page) {
                    (GrantStatus::Okay, Some(page)) => Ok(page),
                    (GrantStatus::Okay, None) => Err(GrantStatus::NoSpace),
                    (&error, _) => Err(error),
                };
                access.prefetch();
            }
        }
        self.guest.ledger.enter(before);
    }

    fn read_end(&mut self) {}

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        let before = self.guest.ledger.enter(Hop::Copy);
        // As many headers at a time as have a place to lie in.
        let at_once = (self.headers.len() / PAGE * HEADERS).max(1);
        for batch in copies.chunks_mut(at_once) {
            self.ops.clear();
            self.of.clear();
            for (n, op) in batch.iter_mut().enumerate() {
                op.status = GrantStatus::BadCopyArg;
                let source = match op.source {
                    Source::Span(span) if span.len() == usize::from(op.len) => Some(span),
                    Source::Span(_) => None,
                    Source::Header { frame, from } => self.header(n, frames, frame, from, op.len),
                };
                if let Some(source) = source {
                    // A piece that lies outside our frames leaves the status as it is.
                    if self.queue(n, op, source).is_some() {
                        op.status = GrantStatus::Okay;
                    }
                }
            }
            self.run();
            for (n, status) in self.of.iter().zip(&self.status) {
                if let Some(op) = batch.get_mut(*n as usize)
                    && *status != GrantStatus::Okay
                {
                    op.status = *status;
                }
            }
        }
        self.guest.ledger.enter(before);
    }
}
