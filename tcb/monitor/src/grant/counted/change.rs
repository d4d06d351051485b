//! Creation and revocation of grants, in batches, by their granter.

use super::entries::{CountedEntry, CurrentGrant};
use super::quarantine::is_idle;
use super::registry::{CountedTables, Registry};
use super::table::{GrantTableState, TableState};
use crate::space::SpaceError;
use abi::counted::{Revocation, Translation};
use abi::hypercall::{CreateGrantOp, RevokeOp};
use abi::{DomId, GrantRef, GrantStatus, Handle, Slot};
use shmem::grant_use;
use shmem::time;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// The interval at which revocations check whether a full quarantine has free entries.
const QUARANTINE_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// An entry whose grant is being revoked.
#[derive(Clone, Copy)]
struct RevokedEntry {
    /// The operation of the batch that requested it, if any.
    op: Option<usize>,
    index: u32,
    granted: CurrentGrant,
    /// Whether the grant is revoked although it is in use.
    forced: bool,
}

impl CountedTables {
    /// Grants pages. Returns one status per operation and, where it is `Okay`, the reference.
    ///
    /// Statuses: `BadHandle`: the caller has not created this table, or one end has ended it.
    /// `BadRef`: the entry does not exist or already has a grant. `Again`: the entry is in
    /// quarantine. `AddressTooBig`: the frame does not exist. `NoSpace`: the table would take more
    /// mappings than its share of the user's limit, or the user's address space rejects the
    /// mapping.
    pub fn create(&self, granter: DomId, ops: &[CreateGrantOp]) -> Vec<(GrantStatus, GrantRef)> {
        let mut answers = vec![(GrantStatus::BadHandle, GrantRef(0)); ops.len()];
        for (table, from, run) in self.runs(granter, ops, |op| op.table) {
            self.create_in(&table, run, answers.get_mut(from..).unwrap_or_default());
        }
        answers
    }

    /// Splits a batch into runs, each for one of the granter's tables. Yields the table, the index
    /// of the run's first operation, and the run.
    fn runs<'a, T>(
        &self,
        granter: DomId,
        ops: &'a [T],
        table: fn(&T) -> Handle,
    ) -> impl Iterator<Item = (Arc<GrantTableState>, usize, &'a [T])> {
        let mut offset = 0;
        let runs = ops.chunk_by(move |a, b| table(a) == table(b));
        runs.filter_map(move |run| {
            offset += run.len();
            let table = self.table(table(run.first()?))?;
            (table.granter == granter).then_some((table, offset - run.len(), run))
        })
    }

    fn create_in(
        &self,
        table: &GrantTableState,
        ops: &[CreateGrantOp],
        answers: &mut [(GrantStatus, GrantRef)],
    ) {
        let _op = table.op();
        let (mut made, mut maps, mut for_io) = (0, Vec::new(), Vec::new());
        {
            let mut state = table.state();
            if state.granter_done || state.user_done {
                return;
            }
            let bound = state.bound;
            for (op, (status, _)) in ops.iter().zip(answers.iter_mut()) {
                let free = |entry: &CountedEntry| entry.granted.is_none();
                let granted = CurrentGrant {
                    frame: op.frame,
                    readonly: op.readonly,
                    io: op.io,
                };
                *status = if !state.entries.get(op.index).is_some_and(free) {
                    GrantStatus::BadRef
                } else if op.frame >= table.memory.frame_count {
                    GrantStatus::AddressTooBig
                } else if !self.leave_quarantine(table, op.index) {
                    GrantStatus::Again
                } else if !state.entries.grant(op.index, granted, table.pieces_max) {
                    GrantStatus::NoSpace
                } else {
                    made += 1;
                    maps.extend(bound.map(|bound| table.page(bound.first, op.index, granted)));
                    for_io.extend(granted.io.then_some((op.index, granted)));
                    GrantStatus::Okay
                };
            }
        }
        // Map the pages before the entries become valid (N-5).
        let mapped = maps.is_empty()
            || self
                .grants
                .change(table.user, |space| space.map(&maps))
                .is_ok();
        if mapped {
            self.map_for_device(table, &for_io);
        }
        let mut state = table.state();
        for (op, (status, gref)) in ops.iter().zip(answers) {
            if *status != GrantStatus::Okay {
                continue;
            }
            if !mapped {
                state.entries.revoke(op.index);
                *status = GrantStatus::NoSpace;
            } else if let Some(entry) = state.entries.get(op.index) {
                *gref = GrantTableState::reference(op.index, entry);
                table.publish(op.index, entry.translation());
            }
        }
        if mapped {
            self.counters.created.fetch_add(made, Ordering::Relaxed);
        }
    }

    /// Revokes grants. Returns one status per operation.
    ///
    /// Statuses: `BadHandle`: the caller has not created this table. `BadRef`: the reference has no
    /// grant, or no longer has one. `Again`: the grant is in use.
    ///
    /// If the resulting holes would exceed the table's share of mappings, the monitor ends the
    /// table: it revokes all its grants by force.
    pub fn revoke(&self, granter: DomId, ops: &[RevokeOp]) -> Vec<GrantStatus> {
        let mut statuses = vec![GrantStatus::BadHandle; ops.len()];
        for (table, from, run) in self.runs(granter, ops, |op| op.table) {
            let _op = table.op();
            let requests: Vec<_> = run.iter().map(|op| (op.gref, op.how)).collect();
            self.revoke_in(
                &table,
                &requests,
                statuses.get_mut(from..).unwrap_or_default(),
            );
        }
        statuses
    }

    /// Returns the number of times that these revocations interrupt a living user.
    #[must_use]
    pub fn cost_of_revocations(&self, granter: DomId, ops: &[RevokeOp]) -> u32 {
        let runs = self.runs(granter, ops, |op| op.table);
        let mapped = runs.filter(|(table, ..)| self.is_mapped(table));
        let windows = |table: &GrantTableState| 1 + u32::from(table.state().shared.is_some());
        mapped
            .map(|(table, _, run)| run.len() as u32 * windows(&table))
            .sum()
    }

    /// Revokes by force everything that a table grants.
    pub(super) fn revoke_all(&self, table: &Arc<GrantTableState>) {
        let all = force_all_except(table, &[]);
        let mut statuses = vec![GrantStatus::GeneralError; all.len()];
        self.revoke_in(table, &all, &mut statuses);
    }

    /// Revokes a run of one table's grants. The caller holds the table's `op`.
    fn revoke_in(
        &self,
        table: &Arc<GrantTableState>,
        requests: &[(GrantRef, Revocation)],
        statuses: &mut [GrantStatus],
    ) {
        let mut revoked = announce(table, requests, statuses);
        if revoked.is_empty() {
            return;
        }
        let indices: Vec<_> = revoked.iter().map(|revoked| revoked.index).collect();
        let ends_table = table.state().entries.pieces_without(&indices) > table.pieces_max;
        if ends_table {
            // Holes also take mappings. A revocation must not fail, so everything is revoked.
            let rest = force_all_except(table, &indices);
            let rest = announce(table, &rest, &mut vec![GrantStatus::Again; rest.len()]);
            revoked.extend(
                rest.into_iter()
                    .map(|rest| RevokedEntry { op: None, ..rest }),
            );
        }
        let forced = revoked.iter().filter(|revoked| revoked.forced);
        let forced: Vec<_> = forced.map(|revoked| revoked.index).collect();
        // Unmap the pages first: the steps below may wait for the user.
        let alive = self.unmap_pages(table, &revoked) && self.charge(table, &forced);
        // The old page may remain pinned in two cases: a user may have pinned a page that it used,
        // and a device pins its pages. In both cases the granter receives another frame.
        let keeps_page = |revoked: &&RevokedEntry| {
            let pinned = self.pins.release(table.granter, revoked.granted.frame);
            pinned || alive && revoked.forced
        };
        let exchanged = revoked.iter().filter(keeps_page);
        let alive = exchanged.fold(alive, |alive, revoked| {
            self.exchange_frame(table, revoked.granted.frame) && alive
        });
        if !alive {
            // The user is dead: it has no page mapped or pinned.
            self.finish_user_half(table);
        }
        let mut state = table.state();
        for revoked in &revoked {
            state.entries.revoke(revoked.index);
            if let Some(status) = revoked.op.and_then(|op| statuses.get_mut(op)) {
                *status = GrantStatus::Okay;
            }
        }
        drop(state);
        self.counters
            .forced
            .fetch_add(forced.len() as u64, Ordering::Relaxed);
        let revoked = revoked.len() as u64;
        self.counters.revoked.fetch_add(revoked, Ordering::Relaxed);
        if ends_table {
            self.finish_granter_half(table);
        }
    }

    /// Unmaps pages from the windows of the user and its device. Returns whether the user is alive.
    fn unmap_pages(&self, table: &GrantTableState, revoked: &[RevokedEntry]) -> bool {
        self.unmap_for_device(table, revoked.iter().map(|revoked| revoked.index));
        let Some(bound) = table.state().bound else {
            return true;
        };
        let slots: Vec<_> = revoked
            .iter()
            .map(|revoked| Slot(bound.first + revoked.index))
            .collect();
        self.grants
            .change(table.user, |space| {
                space.unmap(&slots).map_err(SpaceError::fatal)
            })
            .is_ok()
    }

    /// Exchanges `frame` for another one, because the user or a device may have pinned `frame`.
    /// Returns whether the user is alive.
    pub(super) fn exchange_frame(&self, table: &GrantTableState, frame: u32) -> bool {
        let exchanged = table.memory.exchange(frame);
        if let Err(error) = &exchanged {
            let why = format!("a frame cannot be exchanged: {error}");
            self.grants.destroy(table.user, &why);
        }
        exchanged.is_ok()
    }

    /// Puts entries into their user's quarantine, at the cost of one frame of its collateral each.
    /// If the quarantine is full, waits until the user's wait budget is used up, and then kills the
    /// user. Returns whether the user is alive. The user has already lost the pages, so it gains
    /// nothing by keeping the counts.
    pub(super) fn charge(&self, table: &GrantTableState, mut entering: &[u32]) -> bool {
        let mut since_ns = time::monotonic_ns();
        while !entering.is_empty() {
            let may_wait = {
                let mut registry = self.registry();
                let Registry {
                    tables,
                    quarantines,
                } = &mut *registry;
                let Some(quarantine) = quarantines.get_mut(&table.user) else {
                    return false;
                };
                entering = quarantine.admit(table.handle, entering, |(handle, index)| {
                    let table = tables.get(handle);
                    table.is_some_and(|table| !is_idle(table, *index))
                });
                let now_ns = time::monotonic_ns();
                let may_wait = quarantine.wait_budget.charge(since_ns, now_ns);
                since_ns = now_ns;
                entering.is_empty() || may_wait
            };
            if !may_wait {
                self.grants
                    .destroy(table.user, "it keeps revoked grants in use");
                return false;
            }
            if !entering.is_empty() {
                thread::sleep(QUARANTINE_POLL_INTERVAL);
            }
        }
        true
    }

    /// Takes an entry out of quarantine if its uses have ended. Returns false if it remains there.
    pub(super) fn leave_quarantine(&self, table: &GrantTableState, index: u32) -> bool {
        let mut registry = self.registry();
        let quarantine = registry.quarantines.get_mut(&table.user);
        quarantine.is_none_or(|quarantine| quarantine.try_leave(table, index))
    }
}

/// Returns a forced revocation for every grant of a table, except for those of the entries in
/// `but`.
fn force_all_except(table: &GrantTableState, but: &[u32]) -> Vec<(GrantRef, Revocation)> {
    let but: BTreeSet<_> = but.iter().collect();
    let state = table.state();
    let granted = state.entries.granted();
    granted
        .filter(|(index, ..)| !but.contains(index))
        .map(|(index, entry, _)| (GrantTableState::reference(index, entry), Revocation::Force))
        .collect()
}

/// Stops new uses of the grants, and returns the entries whose grants can be revoked now.
fn announce(
    table: &GrantTableState,
    requests: &[(GrantRef, Revocation)],
    statuses: &mut [GrantStatus],
) -> Vec<RevokedEntry> {
    let mut state = table.state();
    let entry_of = |state: &TableState, gref: GrantRef| {
        let entry = *state.entries.get(gref.index())?;
        let granted = entry.granted?;
        (entry.generation == gref.generation()).then_some((entry, granted))
    };
    let mut announced = false;
    for ((gref, _), status) in requests.iter().zip(statuses.iter_mut()) {
        *status = GrantStatus::BadRef;
        if let Some((entry, _)) = entry_of(&state, *gref)
            && let Some(words) = table.words(gref.index())
        {
            *status = GrantStatus::Again;
            grant_use::announce(words.translation, entry.translation());
            announced = true;
        }
    }
    let mut revoked: Vec<RevokedEntry> = Vec::with_capacity(requests.len());
    if !announced {
        return revoked;
    }
    grant_use::publish(table.announcements);
    let mut refused = Vec::new();
    for (op, ((gref, how), status)) in requests.iter().zip(statuses.iter_mut()).enumerate() {
        let (Some((_, granted)), Some(words)) =
            (entry_of(&state, *gref), table.words(gref.index()))
        else {
            continue;
        };
        if words.translation.load(Ordering::Relaxed) == Translation::INVALID.0 {
            // The batch names the entry twice.
            *status = GrantStatus::BadRef;
            continue;
        }
        let idle = grant_use::is_unused(words.status);
        match how {
            _ if idle => {}
            Revocation::Force => {}
            Revocation::Drain => {
                state.entries.drain(gref.index());
                continue;
            }
            Revocation::Refuse => {
                refused.push(gref.index());
                continue;
            }
        }
        table.publish(gref.index(), Translation::INVALID);
        revoked.push(RevokedEntry {
            op: Some(op),
            index: gref.index(),
            granted,
            forced: !idle,
        });
    }
    // Refused grants become valid again only after all operations were checked: a later operation
    // of the batch may drain or force the same grant, and would miss a use that began in between.
    for index in refused {
        if let Some(entry) = state.entries.get(index)
            && let Some(words) = table.words(index)
            && !entry.draining
            && words.translation.load(Ordering::Relaxed) != Translation::INVALID.0
        {
            table.publish(index, entry.translation());
        }
    }
    revoked
}
