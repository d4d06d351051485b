//! Batches of transfers. A transfer swaps two pages between the ends of an exchange.

use super::exchange::{Exchange, ExchangeState};
use super::registry::Exchanges;
use crate::entry;
use abi::classic::{GrantEntry, TransferOp};
use abi::{DomId, GrantStatus, Slot};
use monitor::grant::Accounts;
use monitor::space::{PageMap, SpaceError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A transfer in progress.
struct PendingTransfer {
    op: usize,
    entry: &'static AtomicU64,
    /// The granter's slot.
    to: Slot,
    /// The user's slot.
    from: Slot,
}

impl Exchanges {
    /// Swaps pages between the caller and granters, and returns one status per operation.
    ///
    /// Statuses: `BadHandle`: the caller is not the user of such an exchange, or one end has
    /// released it. `BadDomain`: the granter is dead, or is killed because its agent does not
    /// answer. `BadSlot`: the slot does not exist, or this batch already uses it. `BadRef`: the
    /// entry does not accept a page of the caller. If the caller's agent does not answer, the
    /// caller is killed, and the rest of the batch is skipped.
    pub(crate) fn transfer(&self, caller: DomId, ops: &[TransferOp]) -> Vec<GrantStatus> {
        let runs = ops.chunk_by(|a, b| a.exchange == b.exchange);
        let mut lives = true;
        let statuses = runs.flat_map(|run| {
            let exchange = run.first().and_then(|op| self.exchange(op.exchange));
            let exchange = exchange.filter(|_| lives);
            let done = exchange.and_then(|e| self.transfer_in(&e, caller, run));
            done.map_or_else(
                || vec![GrantStatus::BadHandle; run.len()],
                |(statuses, caller_lives)| {
                    lives = caller_lives;
                    statuses
                },
            )
        });
        statuses.collect()
    }

    /// Executes consecutive transfers of one exchange. Returns the statuses, and whether the caller
    /// is still alive. Returns `None` if the caller cannot use the exchange.
    fn transfer_in(
        &self,
        exchange: &Exchange,
        caller: DomId,
        ops: &[TransferOp],
    ) -> Option<(Vec<GrantStatus>, bool)> {
        let _op = exchange.op();
        let mut statuses = vec![GrantStatus::BadDomain; ops.len()];
        let mut moving = Vec::with_capacity(ops.len());
        let (maps, _memory) = {
            let accounts = self.grants.lock();
            let state = &mut *exchange.state();
            if state.user.domain != caller || state.user.is_released || state.granter.is_released {
                return None;
            }
            for (at, (op, status)) in ops.iter().zip(&mut statuses).enumerate() {
                match begin(&accounts, state, &moving, op, at) {
                    Ok(begun) => moving.push(begun),
                    Err(why) => *status = why,
                }
            }
            let ExchangeState { granter, user } = state;
            let to_granter = exchange.maps(granter, moving.iter().map(|m| m.to));
            let to_user = exchange.maps(user, moving.iter().map(|m| m.from));
            // The granter may die meanwhile, so the batch keeps its memory until the entries are
            // written.
            let memory = accounts
                .alive(exchange.granter)
                .map(|a| Arc::clone(&a.memory));
            ((to_granter, to_user), memory)
        };
        let mut lives = true;
        if !moving.is_empty() {
            let done = self.swap_pages(exchange.granter, caller, exchange, maps);
            lives = done != Ok(false);
            // After an error, the granter is dead and no page was swapped, so no transfer is marked
            // as completed.
            for m in moving.iter().filter(|_| done.is_ok()) {
                // Release ordering: a granter that reads the mark can access the page.
                let mark = u64::from(GrantEntry::COMPLETED);
                m.entry.fetch_or(mark, Ordering::Release);
                if let Some(status) = statuses.get_mut(m.op) {
                    *status = GrantStatus::Okay;
                }
            }
        }
        Some((statuses, lives))
    }

    /// Changes both address spaces. The granter's address space is first: when the granter can no
    /// longer write to a page, the page is zeroed and mapped for the user. The caller holds `op`.
    /// Returns whether the user is still alive. The user is killed if its address space cannot be
    /// changed.
    ///
    /// # Errors
    /// Returns an error if the granter's address space cannot be changed. The granter is then dead,
    /// and no page was swapped.
    fn swap_pages(
        &self,
        granter: DomId,
        user: DomId,
        exchange: &Exchange,
        (to_granter, to_user): (Vec<PageMap>, Vec<PageMap>),
    ) -> Result<bool, SpaceError> {
        self.grants
            .change(granter, |space| space.replace(&to_granter))?;
        let zero = |map: &PageMap| {
            exchange
                .region
                .span()
                .page(map.frame)
                .map(|page| page.fill(0))
        };
        let clean = to_user.iter().all(|map| zero(map) == Some(Ok(())));
        let changed = self.grants.change(user, |space| match clean {
            true => space.replace(&to_user),
            false => Err(SpaceError::Lost("a page could not be zeroed".into())),
        });
        Ok(changed.is_ok())
    }
}

/// Checks a transfer, consumes the entry that accepts the page, and records the swap in both ends.
fn begin(
    accounts: &Accounts,
    state: &mut ExchangeState,
    moving: &[PendingTransfer],
    op: &TransferOp,
    at: usize,
) -> Result<PendingTransfer, GrantStatus> {
    let ExchangeState { granter, user } = state;
    let account = accounts
        .alive(granter.domain)
        .ok_or(GrantStatus::BadDomain)?;
    let entry = entry::of(&account.memory, op.gref.index());
    let entry = entry.filter(|_| op.gref.generation() == 0);
    let entry = entry.ok_or(GrantStatus::BadRef)?;
    // A batch is small, so a linear search per operation is cheap.
    let from = user.domain;
    let own = user.page(op.slot);
    let own = own.filter(|_| moving.iter().all(|m| m.from != op.slot));
    let own = own.ok_or(GrantStatus::BadSlot)?;
    // The entry is consumed even if its slot is out of range.
    let to = entry::commit(entry, from)?;
    let theirs = granter.page(to);
    let theirs = theirs.filter(|_| moving.iter().all(|m| m.to != to));
    std::mem::swap(theirs.ok_or(GrantStatus::BadSlot)?, own);
    Ok(PendingTransfer {
        op: at,
        entry,
        to,
        from: op.slot,
    })
}
