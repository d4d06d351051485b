//! `GNTTABOP_copy`: copies bytes between pages. Each page belongs to the caller or is granted to
//! it.

use crate::entry::{PinPurpose, PinnedGrant};
use crate::usage::{Locked, UsageTables};
use abi::classic::{CopyOp, CopyOperand};
use abi::{DomId, GrantStatus, PAGE};
use shmem::Span;

/// The source or destination of a validated copy.
#[derive(Clone, Copy, Debug)]
struct CopyEnd {
    at: Span,
    pin: Option<PinnedGrant>,
}

/// Executes copies for one caller. It reuses its buffer for the pins of a batch.
#[derive(Debug, Default)]
pub(crate) struct Copier {
    jobs: Vec<Option<(CopyEnd, CopyEnd)>>,
}

impl Copier {
    /// Executes a batch in order, and stores one status per operation in `status`.
    ///
    /// Pins all pages of the batch, copies without holding a lock, and unpins the pages.
    pub(crate) fn run(
        &mut self,
        tables: UsageTables<'_>,
        caller: DomId,
        ops: &[CopyOp],
        status: &mut Vec<GrantStatus>,
    ) {
        status.clear();
        status.resize(ops.len(), GrantStatus::GeneralError);
        {
            let mut locked = tables.lock();
            for (op, status) in ops.iter().zip(status.iter_mut()) {
                self.jobs.push(match begin(&mut locked, caller, op) {
                    Ok(job) => Some(job),
                    Err(why) => {
                        *status = why;
                        None
                    }
                });
            }
        }
        for (job, status) in self.jobs.iter().zip(status.iter_mut()) {
            if let Some((src, dst)) = job {
                *status = match shmem::copy(dst.at, src.at) {
                    Ok(()) => GrantStatus::Okay,
                    Err(_) => GrantStatus::BadPage,
                };
            }
        }
        let mut locked = tables.lock();
        for (src, dst) in self.jobs.drain(..).flatten() {
            end(&mut locked, caller, src);
            end(&mut locked, caller, dst);
        }
    }
}

fn begin(
    locked: &mut Locked<'_>,
    caller: DomId,
    op: &CopyOp,
) -> Result<(CopyEnd, CopyEnd), GrantStatus> {
    let range = |offset: u16| {
        let (offset, len) = (usize::from(offset), usize::from(op.len));
        (offset + len <= PAGE)
            .then_some((offset, len))
            .ok_or(GrantStatus::BadCopyArg)
    };
    let (src_range, dst_range) = (range(op.src_offset)?, range(op.dst_offset)?);
    let src = begin_end(locked, caller, op.src, src_range, false)?;
    match begin_end(locked, caller, op.dst, dst_range, true) {
        Ok(dst) => Ok((src, dst)),
        Err(why) => {
            end(locked, caller, src);
            Err(why)
        }
    }
}

fn begin_end(
    locked: &mut Locked<'_>,
    caller: DomId,
    place: CopyOperand,
    (offset, len): (usize, usize),
    write: bool,
) -> Result<CopyEnd, GrantStatus> {
    match place {
        CopyOperand::Own { frame } => {
            let own = locked.accounts.account(caller);
            let own = own.ok_or(GrantStatus::BadDomain)?;
            let page = own.memory.frame(frame).ok_or(GrantStatus::AddressTooBig)?;
            Ok(CopyEnd {
                at: page.sub(offset, len).ok_or(GrantStatus::BadCopyArg)?,
                pin: None,
            })
        }
        CopyOperand::Granted { domain, gref } => {
            let pin = locked.pin(caller, domain, gref, write, PinPurpose::Copy)?;
            let Some(at) = locked.page(pin).and_then(|page| page.sub(offset, len)) else {
                locked.unpin(pin, PinPurpose::Copy);
                return Err(GrantStatus::BadPage);
            };
            if let Some(part) = locked.part(caller) {
                part.copying += 1;
            }
            Ok(CopyEnd { at, pin: Some(pin) })
        }
    }
}

fn end(locked: &mut Locked<'_>, caller: DomId, end: CopyEnd) {
    if let Some(pin) = end.pin {
        if let Some(part) = locked.part(caller) {
            part.copying = part.copying.saturating_sub(1);
        }
        locked.unpin(pin, PinPurpose::Copy);
    }
}
