//! `GNTTABOP_copy`: bytes from page to page, each end the caller's own or granted to it.

use super::Grants;
use super::table::{Pin, Purpose, Tables};
use abi::hypercall::{Copy, Place};
use abi::{DomId, GrantStatus, PAGE};
use shmem::Span;

/// One end of a copy that was found to be in order.
#[derive(Clone, Copy, Debug)]
struct End {
    at: Span,
    pin: Option<Pin>,
}

/// Copies for one caller. Holds the batch's pins; the buffer is reused.
#[derive(Debug, Default)]
pub struct Copier {
    jobs: Vec<Option<(End, End)>>,
}

impl Copier {
    /// Carries out a batch in order and leaves one status per operation in `status`.
    ///
    /// All pages of the batch are pinned first, then copied without any lock, then let go.
    pub fn run(
        &mut self,
        grants: &Grants,
        caller: DomId,
        ops: &[Copy],
        status: &mut Vec<GrantStatus>,
    ) {
        status.clear();
        status.resize(ops.len(), GrantStatus::GeneralError);
        {
            let mut tables = grants.lock();
            for (op, status) in ops.iter().zip(status.iter_mut()) {
                self.jobs.push(match begin(&mut tables, caller, op) {
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
        let mut tables = grants.lock();
        for (src, dst) in self.jobs.drain(..).flatten() {
            end(&mut tables, caller, src);
            end(&mut tables, caller, dst);
        }
    }
}

fn begin(tables: &mut Tables, caller: DomId, op: &Copy) -> Result<(End, End), GrantStatus> {
    let range = |offset: u16| {
        let (offset, len) = (usize::from(offset), usize::from(op.len));
        (offset + len <= PAGE)
            .then_some((offset, len))
            .ok_or(GrantStatus::BadCopyArg)
    };
    let (src_range, dst_range) = (range(op.src_offset)?, range(op.dst_offset)?);
    let src = begin_end(tables, caller, op.src, src_range, false)?;
    match begin_end(tables, caller, op.dst, dst_range, true) {
        Ok(dst) => Ok((src, dst)),
        Err(why) => {
            end(tables, caller, src);
            Err(why)
        }
    }
}

fn begin_end(
    tables: &mut Tables,
    caller: DomId,
    place: Place,
    (offset, len): (usize, usize),
    write: bool,
) -> Result<End, GrantStatus> {
    match place {
        Place::Own { frame } => {
            let own = tables.account(caller).ok_or(GrantStatus::BadDomain)?;
            let page = own.memory.frame(frame).ok_or(GrantStatus::AddressTooBig)?;
            Ok(End {
                at: page.sub(offset, len).ok_or(GrantStatus::BadCopyArg)?,
                pin: None,
            })
        }
        Place::Granted { domain, gref } => {
            let pin = tables.pin(caller, domain, gref, write, Purpose::Copy)?;
            let Some(at) = tables.page(pin).and_then(|page| page.sub(offset, len)) else {
                tables.unpin(pin, Purpose::Copy);
                return Err(GrantStatus::BadPage);
            };
            if let Some(account) = tables.account_mut(caller) {
                account.copying += 1;
            }
            Ok(End { at, pin: Some(pin) })
        }
    }
}

fn end(tables: &mut Tables, caller: DomId, end: End) {
    if let Some(pin) = end.pin {
        if let Some(account) = tables.account_mut(caller) {
            account.copying = account.copying.saturating_sub(1);
        }
        tables.unpin(pin, Purpose::Copy);
    }
}
