//! Hypercalls of one domain. Each call is decoded once into typed operations, and then executed.

use crate::copy::Copier;
use crate::flip::Exchanges;
use crate::map::Mapper;
use crate::usage::{GrantUsage, UsageTables};
use abi::classic::{CopyOp, MapOp, TransferOp, UnmapOp};
use abi::hypercall::{HypercallKind, OPS_MAX};
use abi::{ConnId, DomId, GrantStatus, Handle, Slot};
use monitor::grant::GrantAccounts;
use monitor::grant::mechanism::{GrantResult, OtherCall};
use monitor::space::{AddressSpace, SpaceError};

/// Serves the hypercalls of one domain. It reuses its buffers, so decoding does not allocate
/// memory.
#[derive(Debug)]
pub(crate) struct ClassicCaller {
    id: DomId,
    mapper: Mapper,
    copier: Copier,
    copies: Vec<CopyOp>,
    maps: Vec<MapOp>,
    unmaps: Vec<UnmapOp>,
    transfers: Vec<TransferOp>,
}

impl ClassicCaller {
    pub(crate) fn new(id: DomId) -> Self {
        Self {
            id,
            mapper: Mapper::new(id),
            copier: Copier::default(),
            copies: Vec::with_capacity(OPS_MAX),
            maps: Vec::with_capacity(OPS_MAX),
            unmaps: Vec::with_capacity(OPS_MAX),
            transfers: Vec::new(),
        }
    }

    /// Executes a hypercall of the domain. Returns `None` for an unknown call.
    pub(crate) fn call(
        &mut self,
        (usage, flips): (&GrantUsage, &Exchanges),
        grants: &GrantAccounts,
        space: &mut dyn AddressSpace,
        call: &OtherCall<'_>,
    ) -> Result<Option<GrantResult>, SpaceError> {
        let id = self.id;
        let tables = UsageTables { grants, usage };
        let words = call.ops.iter().copied();
        let mut statuses = Vec::new();
        match call.kind {
            HypercallKind::GrantCopy => {
                let ops = fill(&mut self.copies, words.map(CopyOp::decode));
                self.copier.run(tables, id, ops, &mut statuses);
            }
            HypercallKind::GrantMap => {
                let ops = fill(&mut self.maps, words.map(MapOp::decode));
                self.mapper.map(tables, space, ops, &mut statuses)?;
            }
            HypercallKind::GrantUnmap => {
                let ops = fill(&mut self.unmaps, words.map(decode_unmap));
                self.mapper.unmap(tables, space, ops, &mut statuses)?;
            }
            HypercallKind::GrantTransfer => {
                let ops = fill(&mut self.transfers, words.map(TransferOp::decode));
                statuses = flips.transfer(id, ops);
            }
            HypercallKind::ExchangeCreate => {
                let &[words] = call.ops else {
                    return Ok(None);
                };
                return Ok(Some(GrantResult::Created(Self::create(flips, call, words))));
            }
            _ => return Ok(None),
        }
        Ok(Some(GrantResult::Batch(statuses)))
    }

    /// Handles the death of a granter. Removes its memory from the domain's address space as soon
    /// as none of its pages is mapped.
    pub(crate) fn granter_died(
        &mut self,
        grants: &GrantAccounts,
        space: &mut dyn AddressSpace,
        granter: DomId,
    ) -> Result<(), SpaceError> {
        self.mapper.granter_died(grants, space, granter)
    }

    /// Ends all uses by the domain, whose process and agent have exited.
    pub(crate) fn tear_down(&mut self, grants: &GrantAccounts, usage: &GrantUsage) {
        self.mapper.tear_down(UsageTables { grants, usage });
    }

    /// Creates the granter's half of an exchange. The words of the call are the connection, the
    /// number of pages per end, and the caller's first slot.
    fn create(
        flips: &Exchanges,
        call: &OtherCall<'_>,
        [conn, pages, first]: [u64; 3],
    ) -> Result<Handle, GrantStatus> {
        let (own, peer) = (call.ends)(ConnId(u32::try_from(conn).unwrap_or(u32::MAX)))?;
        // No window has more than `u32::MAX` slots.
        let narrow = |word: u64| u32::try_from(word).map_err(|_| GrantStatus::BadSlot);
        let place = (narrow(pages)?, Slot(narrow(first)?));
        flips.create(own, peer, place)
    }
}

fn fill<T>(buffer: &mut Vec<T>, operations: impl Iterator<Item = T>) -> &[T] {
    buffer.clear();
    buffer.extend(operations);
    buffer
}

/// Decodes an unmapping. As in [`MapOp::decode`], the slot is the low half of the word.
fn decode_unmap([slot, ..]: [u64; 3]) -> UnmapOp {
    let slot = Slot(slot as u32);
    UnmapOp { slot }
}
