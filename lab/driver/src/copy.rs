//! Grant mechanism `copy`: one hypercall per batch requests that the monitor copy the bytes. No
//! page is mapped.

use crate::window;
use abi::classic::{CopyOp, CopyOperand};
use abi::hypercall::HypercallKind;
use abi::{GrantStatus, PAGE};
use driver::grants::GranterWindow;
use nic::Frame;
use nic::frame::SNAPSHOT_MAX;
use runtime::ledger::Hop;
use shmem::{Area, Span};
use vif::grants::{CopyOut, CopySource, GrantAccess, GrantMechanism};

/// Number of header snapshots per page.
const HEADERS_PER_PAGE: usize = PAGE / SNAPSHOT_MAX;

/// The grant mechanism for one guest.
#[derive(Debug)]
pub(crate) struct CopyGrants {
    guest: GranterWindow,
    /// All frames of this domain. They contain the local sources and destinations of the monitor's
    /// copies.
    frames: Area,
    /// Destination pages of reads, one page per access.
    reads: Span,
    /// Pages from which the monitor copies headers.
    headers: Span,
    ops: Vec<CopyOp>,
    /// Index of the caller's operation, for each entry of `ops`.
    op_of: Vec<u32>,
    status: Vec<GrantStatus>,
}

impl CopyGrants {
    /// Creates the mechanism. `frames` has all frames of this domain. `staging` is a page-aligned
    /// part of `frames` that nothing else uses: one eighth is for headers, the rest for the bytes
    /// that are read.
    #[must_use]
    pub(crate) fn new(guest: GranterWindow, frames: Area, staging: Span) -> Self {
        let headers = (staging.len() / 8).next_multiple_of(PAGE);
        Self {
            guest,
            frames,
            reads: staging.skip(headers),
            headers: staging.take(headers),
            ops: Vec::new(),
            op_of: Vec::new(),
            status: Vec::new(),
        }
    }

    /// Returns the operand that denotes the start of a local range, its offset in its page, and the
    /// number of bytes up to the end of the page.
    fn local_operand(&self, span: Span) -> Option<(CopyOperand, u16, usize)> {
        let offset = span.addr().checked_sub(self.frames.span().addr())?;
        if offset.checked_add(span.len())? > self.frames.len() {
            return None;
        }
        let within = offset % PAGE;
        Some((
            CopyOperand::Own {
                frame: (offset / PAGE) as u32,
            },
            within as u16,
            PAGE - within,
        ))
    }

    /// Queues copies of `source`, which is local memory, to a granted page. Splits `source` at page
    /// boundaries.
    fn queue_copies(&mut self, n: usize, op: &CopyOut, source: Span) -> Option<()> {
        let dst = CopyOperand::Granted {
            domain: self.guest.domain,
            gref: op.gref,
        };
        let (mut rest, mut dst_offset) = (source, op.offset);
        while !rest.is_empty() {
            let (src, src_offset, room) = self.local_operand(rest)?;
            let len = rest.len().min(room);
            self.ops.push(CopyOp {
                src,
                dst,
                src_offset,
                dst_offset,
                len: len as u16,
            });
            self.op_of.push(n as u32);
            rest = rest.skip(len);
            dst_offset = dst_offset.checked_add(len as u16)?;
        }
        Some(())
    }

    /// Copies the header bytes of operation `n` to memory from which the monitor can copy them.
    fn header(&self, n: usize, frames: &[Frame], frame: u32, from: u16, len: u16) -> Option<Span> {
        let (from, len) = (usize::from(from), usize::from(len));
        let bytes = frames
            .get(frame as usize)?
            .header()
            .get(from..from.checked_add(len)?)?;
        let cell = self.headers.sub(n.checked_mul(SNAPSHOT_MAX)?, len)?;
        cell.write(bytes).ok()?;
        Some(cell)
    }

    fn run(&mut self) {
        self.status.clear();
        if !self.ops.is_empty() {
            let (kind, ops) = (HypercallKind::GrantCopy, &self.ops);
            window::call(&self.guest, |calls| {
                calls.batches(kind, ops, CopyOp::encode, &mut self.status);
            });
        }
    }
}

impl GrantMechanism for CopyGrants {
    fn read_begin(&mut self, accesses: &mut [GrantAccess]) {
        let before = self.guest.ledger.enter(Hop::Copy);
        self.ops.clear();
        self.op_of.clear();
        for (n, access) in accesses.iter_mut().enumerate() {
            access.result = Err(GrantStatus::NoSpace);
            let Some(page) = self.reads.sub(n * PAGE, usize::from(access.len)) else {
                continue;
            };
            let Some((dst, dst_offset, _)) = self.local_operand(page) else {
                continue;
            };
            self.ops.push(CopyOp {
                src: CopyOperand::Granted {
                    domain: self.guest.domain,
                    gref: access.gref,
                },
                dst,
                src_offset: access.offset,
                dst_offset,
                len: access.len,
            });
            self.op_of.push(n as u32);
        }
        self.run();
        for (n, status) in self.op_of.iter().zip(&self.status) {
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
        // The memory for headers limits the number of copies per hypercall.
        let copies_max = (self.headers.len() / PAGE * HEADERS_PER_PAGE).max(1);
        for batch in copies.chunks_mut(copies_max) {
            self.ops.clear();
            self.op_of.clear();
            for (n, op) in batch.iter_mut().enumerate() {
                op.status = GrantStatus::BadCopyArg;
                let source = match op.source {
                    CopySource::Span(span) if span.len() == usize::from(op.len) => Some(span),
                    CopySource::Span(_) => None,
                    CopySource::Header { frame, from } => {
                        self.header(n, frames, frame, from, op.len)
                    }
                };
                if let Some(source) = source {
                    // If the source is outside this domain's frames, the operation keeps the status
                    // `BadCopyArg`.
                    if self.queue_copies(n, op, source).is_some() {
                        op.status = GrantStatus::Okay;
                    }
                }
            }
            self.run();
            for (n, status) in self.op_of.iter().zip(&self.status) {
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
