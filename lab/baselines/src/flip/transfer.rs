//! Batches of transfers: pages change places between the two ends of an exchange.

use super::exchange::{Exchange, ExchangeState};
use super::registry::Exchanges;
use crate::entry;
use abi::classic::{GrantEntry, Transfer};
use abi::{DomId, GrantStatus, Slot};
use monitor::grant::Accounts;
use monitor::space::{PageMap, SpaceError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A transfer under way.
struct Moving {
    op: usize,
    entry: &'static AtomicU64,
    /// The granter's slot.
    to: Slot,
    /// The user's.
    from: Slot,
}

impl Exchanges {
    /// Gives pages away and gets as many; one status per operation.
    ///
    /// Statuses: `BadHandle`: no such exchange whose user the caller is, or one end has done with
    /// it. `BadDomain`: the granter is dead, or its agent did not answer: then it is. `BadSlot`: no
    /// such slot of either end's, or one that is in this batch already. `BadRef`: the entry accepts
    /// no page of the caller's. If it is the caller's agent that does not answer, the caller is
    /// dead, and nothing more of the batch is done.
    pub(crate) fn transfer(&self, caller: DomId, ops: &[Transfer]) -> Vec<GrantStatus> {
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

    /// A run of one exchange: its statuses, and whether the caller is alive after it; none: there
    /// is no such exchange.
    fn transfer_in(
        &self,
        exchange: &Exchange,
        caller: DomId,
        ops: &[Transfer],
    ) -> Option<(Vec<GrantStatus>, bool)> {
        let _op = exchange.op();
        let mut statuses = vec![GrantStatus::BadDomain; ops.len()];
        let mut moving = Vec::with_capacity(ops.len());
        let (maps, _memory) = {
            let accounts = self.grants.lock();
            let state = &mut *exchange.state();
            if state.user.domain != caller || state.user.done || state.granter.done {
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
            // Kept until its entries are written: the granter may die meanwhile.
            let memory = accounts
                .alive(exchange.granter)
                .map(|a| Arc::clone(&a.memory));
            ((to_granter, to_user), memory)
        };
        let mut lives = true;
        if !moving.is_empty() {
            let done = self.carry_out(exchange.granter, caller, exchange, maps);
            lives = done != Ok(false);
            // Otherwise the granter is dead: whatever the books say, nothing changes hands any
            // more.
            for m in moving.iter().filter(|_| done.is_ok()) {
                // Release: who sees the mark sees the page.
                let mark = u64::from(GrantEntry::COMPLETED);
                m.entry.fetch_or(mark, Ordering::Release);
                if let Some(status) = statuses.get_mut(m.op) {
                    *status = GrantStatus::Okay;
                }
            }
        }
        Some((statuses, lives))
    }

    /// Has both agents work, the granter's first: what is taken from it is zeroed when it cannot
    /// write there any more, and the user sees it afterwards. `op` is held. Whether the user is
    /// alive: one whose space cannot be changed is dead afterwards.
    ///
    /// # Errors
    /// The granter is dead, and nothing has changed hands.
    fn carry_out(
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

/// Checks a transfer, uses up the entry that accepts it, and notes it in the books.
fn begin(
    accounts: &Accounts,
    state: &mut ExchangeState,
    moving: &[Moving],
    op: &Transfer,
    at: usize,
) -> Result<Moving, GrantStatus> {
    let ExchangeState { granter, user } = state;
    let account = accounts
        .alive(granter.domain)
        .ok_or(GrantStatus::BadDomain)?;
    let entry = entry::of(&account.memory, op.gref.index());
    let entry = entry.filter(|_| op.gref.generation() == 0);
    let entry = entry.ok_or(GrantStatus::BadRef)?;
    // A batch is small enough to be looked through for each of its operations.
    let from = user.domain;
    let own = user.page(op.slot);
    let own = own.filter(|_| moving.iter().all(|m| m.from != op.slot));
    let own = own.ok_or(GrantStatus::BadSlot)?;
    // An entry that names a slot which is not there is used up all the same.
    let to = entry::commit(entry, from)?;
    let theirs = granter.page(to);
    let theirs = theirs.filter(|_| moving.iter().all(|m| m.to != to));
    std::mem::swap(theirs.ok_or(GrantStatus::BadSlot)?, own);
    Ok(Moving {
        op: at,
        entry,
        to,
        from: op.slot,
    })
}
