//! Creation and revocation of grants, in batches, by their granter.

use super::entries::{CountedEntry, CurrentGrant};
use super::quarantine::is_idle;
use super::registry::{CountedTables, Registry};
use super::table::{GrantTableState, TableState};
use crate::space::SpaceError;
use abi::counted::{Revocation, Translation};
use abi::hypercall::{Create, Revoke};
use abi::{DomId, GrantRef, GrantStatus, Handle, Slot};
use shmem::grant_use;
use shmem::time;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// The interval at which a full quarantine is checked for room.
const LOOK: Duration = Duration::from_millis(1);
/// An entry that is about to lose its grant.
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
    /// Statuses: `BadHandle`: the caller has no such table, or one end has ended it. `BadRef`: no
    /// such entry, or it grants something already. `Again`: the entry is in quarantine.
    /// `AddressTooBig`: no such frame. `NoSpace`: the table would take more mappings than its share
    /// of the user's limit, or the user's address space rejects the mapping.
    pub fn create(&self, granter: DomId, ops: &[Create]) -> Vec<(GrantStatus, GrantRef)> {
        let mut answers = vec![(GrantStatus::BadHandle, GrantRef(0)); ops.len()];
        for (table, from, run) in self.runs(granter, ops, |op| op.table) {
            self.create_in(&table, run, answers.get_mut(from..).unwrap_or_default());
        }
        answers
    }

    /// Splits a batch into runs of operations for one table of the granter's. Yields the table, the
    /// index of the run's first operation, and the run.
    fn runs<'a, T>(
        &self,
        granter: DomId,
        ops: &'a [T],
        table: fn(&T) -> Handle,
    ) -> impl Iterator<Item = (Arc<GrantTableState>, usize, &'a [T])> {
        let mut behind = 0;
        let runs = ops.chunk_by(move |a, b| table(a) == table(b));
        runs.filter_map(move |run| {
            behind += run.len();
            let table = self.table(table(run.first()?))?;
            (table.granter == granter).then_some((table, behind - run.len(), run))
        })
    }

    fn create_in(
        &self,
        table: &GrantTableState,
        ops: &[Create],
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
                } else if !self.leaves_quarantine(table, op.index) {
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
            self.show_to_device(table, &for_io);
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
                table.show(op.index, entry.translation());
            }
        }
        if mapped {
            self.counters.created.fetch_add(made, Ordering::Relaxed);
        }
    }

    /// Revokes grants. Returns one status per operation.
    ///
    /// Statuses: `BadHandle`: the caller has no such table. `BadRef`: this reference grants
    /// nothing, or no longer. `Again`: the grant is in use.
    ///
    /// If the resulting holes would exceed the table's share of mappings, the table is ended: all
    /// its grants are revoked by force.
    pub fn revoke(&self, granter: DomId, ops: &[Revoke]) -> Vec<GrantStatus> {
        let mut statuses = vec![GrantStatus::BadHandle; ops.len()];
        for (table, from, run) in self.runs(granter, ops, |op| op.table) {
            let _op = table.op();
            let wanted: Vec<_> = run.iter().map(|op| (op.gref, op.how)).collect();
            self.revoke_in(
                &table,
                &wanted,
                statuses.get_mut(from..).unwrap_or_default(),
            );
        }
        statuses
    }

    /// Returns the number of times that these revocations interrupt their users; dead users do not
    /// count.
    #[must_use]
    pub fn cost_of_revocations(&self, granter: DomId, ops: &[Revoke]) -> u32 {
        let runs = self.runs(granter, ops, |op| op.table);
        let mapped = runs.filter(|(table, ..)| self.is_mapped(table));
        let windows = |table: &GrantTableState| 1 + u32::from(table.state().shared.is_some());
        mapped
            .map(|(table, _, run)| run.len() as u32 * windows(&table))
            .sum()
    }

    /// Revokes by force everything that a table grants.
    pub(super) fn revoke_all(&self, table: &Arc<GrantTableState>) {
        let all = everything_but(table, &[]);
        let mut statuses = vec![GrantStatus::GeneralError; all.len()];
        self.revoke_in(table, &all, &mut statuses);
    }

    /// Revokes a run of one table's grants. The caller holds the table's `op`.
    fn revoke_in(
        &self,
        table: &Arc<GrantTableState>,
        wanted: &[(GrantRef, Revocation)],
        statuses: &mut [GrantStatus],
    ) {
        let mut leaving = announce(table, wanted, statuses);
        if leaving.is_empty() {
            return;
        }
        let indices: Vec<_> = leaving.iter().map(|leaving| leaving.index).collect();
        let ends = table.state().entries.pieces_without(&indices) > table.pieces_max;
        if ends {
            // Holes take mappings, too. A revocation must succeed, so everything is revoked.
            let rest = everything_but(table, &indices);
            let rest = announce(table, &rest, &mut vec![GrantStatus::Again; rest.len()]);
            leaving.extend(
                rest.into_iter()
                    .map(|rest| RevokedEntry { op: None, ..rest }),
            );
        }
        let forced = leaving.iter().filter(|leaving| leaving.forced);
        let forced: Vec<_> = forced.map(|leaving| leaving.index).collect();
        // Unmap the pages first: the steps below may wait for the user.
        let alive = self.take_away(table, &leaving) && self.charge(table, &forced);
        // If the user could have pinned a page, or a device has pinned it, they keep the page, and
        // the granter gets another frame.
        let stays = |leaving: &&RevokedEntry| {
            let pinned = self.pins.release(table.granter, leaving.granted.frame);
            pinned || alive && leaving.forced
        };
        let exchanged = leaving.iter().filter(stays);
        let alive = exchanged.fold(alive, |alive, leaving| {
            self.exchange_frame(table, leaving.granted.frame) && alive
        });
        if !alive {
            // The user is dead: it reaches and pins no page.
            self.end_user(table);
        }
        let mut state = table.state();
        for leaving in &leaving {
            state.entries.revoke(leaving.index);
            if let Some(status) = leaving.op.and_then(|op| statuses.get_mut(op)) {
                *status = GrantStatus::Okay;
            }
        }
        drop(state);
        self.counters
            .forced
            .fetch_add(forced.len() as u64, Ordering::Relaxed);
        let revoked = leaving.len() as u64;
        self.counters.revoked.fetch_add(revoked, Ordering::Relaxed);
        if ends {
            self.granter_is_done(table);
        }
    }

    /// Unmaps pages from the windows of the user and its device. Returns whether the user lives.
    fn take_away(&self, table: &GrantTableState, leaving: &[RevokedEntry]) -> bool {
        self.hide_from_device(table, leaving.iter().map(|leaving| leaving.index));
        let Some(bound) = table.state().bound else {
            return true;
        };
        let slots: Vec<_> = leaving
            .iter()
            .map(|leaving| Slot(bound.first + leaving.index))
            .collect();
        self.grants
            .change(table.user, |space| {
                space.unmap(&slots).map_err(SpaceError::fatal)
            })
            .is_ok()
    }

    /// Gives the granter another frame in place of one that the user or a device may have pinned.
    /// Returns whether the user lives.
    pub(super) fn exchange_frame(&self, table: &GrantTableState, frame: u32) -> bool {
        let exchanged = table.memory.exchange(frame);
        if let Err(error) = &exchanged {
            let why = format!("a frame cannot be exchanged: {error}");
            self.grants.destroy(table.user, &why);
        }
        exchanged.is_ok()
    }

    /// Puts entries into their user's quarantine, at the cost of one frame of its collateral each.
    /// Returns whether the user lives. Waits for room for as long as the user's patience lasts. The
    /// user has already lost the pages, and gains nothing by keeping the counts.
    pub(super) fn charge(&self, table: &GrantTableState, mut entering: &[u32]) -> bool {
        let mut since_ns = time::monotonic_ns();
        while !entering.is_empty() {
            let patient = {
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
                let patient = quarantine.patience.waits(since_ns, now_ns);
                since_ns = now_ns;
                entering.is_empty() || patient
            };
            if !patient {
                self.grants
                    .destroy(table.user, "it keeps revoked grants in use");
                return false;
            }
            if !entering.is_empty() {
                thread::sleep(LOOK);
            }
        }
        true
    }

    /// Returns whether an entry is not in quarantine, or can leave it now.
    pub(super) fn leaves_quarantine(&self, table: &GrantTableState, index: u32) -> bool {
        let mut registry = self.registry();
        let quarantine = registry.quarantines.get_mut(&table.user);
        quarantine.is_none_or(|quarantine| quarantine.try_leave(table, index))
    }
}

/// Returns a forced revocation for every grant of a table, except for the entries in `but`.
fn everything_but(table: &GrantTableState, but: &[u32]) -> Vec<(GrantRef, Revocation)> {
    let but: BTreeSet<_> = but.iter().collect();
    let state = table.state();
    let granted = state.entries.granted();
    granted
        .filter(|(index, ..)| !but.contains(index))
        .map(|(index, entry, _)| (GrantTableState::reference(index, entry), Revocation::Force))
        .collect()
}

/// Stops new uses of the grants, and returns the entries whose grants can be revoked.
fn announce(
    table: &GrantTableState,
    wanted: &[(GrantRef, Revocation)],
    statuses: &mut [GrantStatus],
) -> Vec<RevokedEntry> {
    let mut state = table.state();
    let entry_of = |state: &TableState, gref: GrantRef| {
        let entry = *state.entries.get(gref.index())?;
        let granted = entry.granted?;
        (entry.generation == gref.generation()).then_some((entry, granted))
    };
    let mut announced = false;
    for ((gref, _), status) in wanted.iter().zip(statuses.iter_mut()) {
        *status = GrantStatus::BadRef;
        if let Some((entry, _)) = entry_of(&state, *gref)
            && let Some(words) = table.words(gref.index())
        {
            *status = GrantStatus::Again;
            grant_use::announce(words.translation, entry.translation());
            announced = true;
        }
    }
    let mut leaving: Vec<RevokedEntry> = Vec::with_capacity(wanted.len());
    if !announced {
        return leaving;
    }
    grant_use::publish(table.announcements);
    let mut refused = Vec::new();
    for (op, ((gref, how), status)) in wanted.iter().zip(statuses.iter_mut()).enumerate() {
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
        let idle = grant_use::idle(words.status);
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
        table.show(gref.index(), Translation::INVALID);
        leaving.push(RevokedEntry {
            op: Some(op),
            index: gref.index(),
            granted,
            forced: !idle,
        });
    }
    // Only after all were checked: the batch may name one of these again, to drain or force it, and
    // a use that began in between would be missed.
    for index in refused {
        if let Some(entry) = state.entries.get(index)
            && let Some(words) = table.words(index)
            && !entry.draining
            && words.translation.load(Ordering::Relaxed) != Translation::INVALID.0
        {
            table.show(index, entry.translation());
        }
    }
    leaving
}
