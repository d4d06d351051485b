//! Creation and revocation of grants, in batches, by their granter.

use super::entries::{Entry, Granted};
use super::quarantine::is_idle;
use super::registry::{CountedGrants, Registry};
use super::table::{Table, TableState};
use crate::space::SpaceError;
use abi::counted::{Revocation, Translation};
use abi::hypercall::{Create, Revoke};
use abi::{DomId, GrantRef, GrantStatus, Handle, Slot};
use shmem::time;
use shmem::uses;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Between two looks at a quarantine that is full.
const LOOK: Duration = Duration::from_millis(1);
/// An entry that is to lose its grant.
#[derive(Clone, Copy)]
struct Leaving {
    /// Which operation of the batch asked for it, if one did.
    op: Option<usize>,
    index: u32,
    granted: Granted,
    /// It is in use all the same.
    forced: bool,
}

impl CountedGrants {
    /// Grants pages; one status and, if it is `Okay`, the reference per operation.
    ///
    /// Statuses: `BadHandle`: no such table of the caller's, or one end has done with it. `BadRef`:
    /// no such entry, or it grants something. `Again`: the entry is in quarantine.
    /// `AddressTooBig`: no such frame. `NoSpace`: the table would take more mappings than its share
    /// of what the user may have, or the user's address space refuses.
    pub fn create(&self, granter: DomId, ops: &[Create]) -> Vec<(GrantStatus, GrantRef)> {
        let mut answers = vec![(GrantStatus::BadHandle, GrantRef(0)); ops.len()];
        for (table, from, run) in self.runs(granter, ops, |op| op.table) {
            self.create_in(&table, run, answers.get_mut(from..).unwrap_or_default());
        }
        answers
    }

    /// The operations of a batch that are for one table of the granter's, one after the other: the
    /// table, the place of the first, and all.
    fn runs<'a, T>(
        &self,
        granter: DomId,
        ops: &'a [T],
        table: fn(&T) -> Handle,
    ) -> impl Iterator<Item = (Arc<Table>, usize, &'a [T])> {
        let mut behind = 0;
        let runs = ops.chunk_by(move |a, b| table(a) == table(b));
        runs.filter_map(move |run| {
            behind += run.len();
            let table = self.table(table(run.first()?))?;
            (table.granter == granter).then_some((table, behind - run.len(), run))
        })
    }

    fn create_in(&self, table: &Table, ops: &[Create], answers: &mut [(GrantStatus, GrantRef)]) {
        let _op = table.op();
        let (mut made, mut maps) = (0, Vec::new());
        {
            let mut state = table.state();
            if state.granter_done || state.user_done {
                return;
            }
            let bound = state.bound;
            for (op, (status, _)) in ops.iter().zip(answers.iter_mut()) {
                let free = |entry: &Entry| entry.granted.is_none();
                let granted = Granted {
                    frame: op.frame,
                    readonly: op.readonly,
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
                    maps.extend(bound.map(|bound| table.page(bound, op.index, granted)));
                    GrantStatus::Okay
                };
            }
        }
        // The pages are there before the entries say so (N-5).
        let mapped = maps.is_empty()
            || self
                .grants
                .change(table.user, |space| space.map(&maps))
                .is_ok();
        let mut state = table.state();
        for (op, (status, gref)) in ops.iter().zip(answers) {
            if *status != GrantStatus::Okay {
                continue;
            }
            if !mapped {
                state.entries.revoke(op.index);
                *status = GrantStatus::NoSpace;
            } else if let Some(entry) = state.entries.get(op.index) {
                *gref = Table::reference(op.index, entry);
                table.show(op.index, entry.translation());
            }
        }
        if mapped {
            self.counters.created.fetch_add(made, Ordering::Relaxed);
        }
    }

    /// Revokes grants; one status per operation.
    ///
    /// Statuses: `BadHandle`: no such table of the caller's. `BadRef`: nothing is granted by this
    /// reference (any more). `Again`: it is in use.
    ///
    /// A table that takes more mappings without these grants than its share is ended: everything
    /// in it is revoked by force.
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

    /// How often these revocations interrupt their users: those of living ones alone.
    #[must_use]
    pub fn cost_of_revocations(&self, granter: DomId, ops: &[Revoke]) -> u32 {
        let runs = self.runs(granter, ops, |op| op.table);
        let mapped = runs.filter(|(table, ..)| self.is_mapped(table));
        mapped.map(|(_, _, run)| run.len() as u32).sum()
    }

    /// Revokes whatever a table grants, by force.
    pub(super) fn revoke_all(&self, table: &Arc<Table>) {
        let all = everything_but(table, &[]);
        let mut statuses = vec![GrantStatus::GeneralError; all.len()];
        self.revoke_in(table, &all, &mut statuses);
    }

    /// `op` is held.
    fn revoke_in(
        &self,
        table: &Arc<Table>,
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
            // Holes are mappings, too. A revocation cannot be refused, so all of it goes.
            let rest = everything_but(table, &indices);
            let rest = announce(table, &rest, &mut vec![GrantStatus::Again; rest.len()]);
            leaving.extend(rest.into_iter().map(|rest| Leaving { op: None, ..rest }));
        }
        let forced = leaving.iter().filter(|leaving| leaving.forced);
        let forced: Vec<_> = forced.map(|leaving| leaving.index).collect();
        // The pages go first: what follows may wait for the user.
        let alive = self.take_away(table, &leaving) && self.charge(table, &forced);
        // What the user could have pinned stays with it, and what a device has pinned with the
        // device: the granter gets another frame.
        let stays = |leaving: &&Leaving| {
            let pinned = self.pins.release(table.granter, leaving.granted.frame);
            pinned || alive && leaving.forced
        };
        let exchanged = leaving.iter().filter(stays);
        let alive = exchanged.fold(alive, |alive, leaving| {
            self.exchange_frame(table, leaving.granted.frame) && alive
        });
        if !alive {
            // Nothing can be reached any more, and nothing is pinned: it is dead.
            self.user_is_gone(table);
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

    /// Takes pages out of the user's window; whether the user lives.
    fn take_away(&self, table: &Table, leaving: &[Leaving]) -> bool {
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

    /// Gives the granter another frame in place of one that the user or a device may have pinned;
    /// whether the user lives.
    pub(super) fn exchange_frame(&self, table: &Table, frame: u32) -> bool {
        let exchanged = table.memory.exchange(frame);
        if let Err(error) = &exchanged {
            let why = format!("a frame cannot be exchanged: {error}");
            self.grants.destroy(table.user, &why);
        }
        exchanged.is_ok()
    }

    /// Puts entries into their user's quarantine, at the cost of one frame of its collateral each;
    /// whether the user lives. Waits for room while there is patience: the user has lost the
    /// pages, and has nothing to gain by keeping the counts.
    pub(super) fn charge(&self, table: &Table, mut entering: &[u32]) -> bool {
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
                    .destroy(table.user, "it does not let go of grants that were revoked");
                return false;
            }
            if !entering.is_empty() {
                thread::sleep(LOOK);
            }
        }
        true
    }

    /// Whether an entry is in no quarantine, or can leave it.
    pub(super) fn leaves_quarantine(&self, table: &Table, index: u32) -> bool {
        let mut registry = self.registry();
        let quarantine = registry.quarantines.get_mut(&table.user);
        quarantine.is_none_or(|quarantine| quarantine.lets_go(table, index))
    }
}

/// Everything that a table grants but these, to be revoked by force.
fn everything_but(table: &Table, but: &[u32]) -> Vec<(GrantRef, Revocation)> {
    let but: BTreeSet<_> = but.iter().collect();
    let state = table.state();
    let granted = state.entries.granted();
    granted
        .filter(|(index, ..)| !but.contains(index))
        .map(|(index, entry, _)| (Table::reference(index, entry), Revocation::Force))
        .collect()
}

/// Lets no new use of the grants begin, and finds out which of them can go.
fn announce(
    table: &Table,
    wanted: &[(GrantRef, Revocation)],
    statuses: &mut [GrantStatus],
) -> Vec<Leaving> {
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
            uses::announce(words.translation, entry.translation());
            announced = true;
        }
    }
    let mut leaving: Vec<Leaving> = Vec::with_capacity(wanted.len());
    if !announced {
        return leaving;
    }
    uses::publish(table.announcements);
    let mut refused = Vec::new();
    for (op, ((gref, how), status)) in wanted.iter().zip(statuses.iter_mut()).enumerate() {
        let (Some((_, granted)), Some(words)) =
            (entry_of(&state, *gref), table.words(gref.index()))
        else {
            continue;
        };
        if words.translation.load(Ordering::Relaxed) == Translation::INVALID.0 {
            // Named twice in one batch.
            *status = GrantStatus::BadRef;
            continue;
        }
        let idle = uses::idle(words.status);
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
        leaving.push(Leaving {
            op: Some(op),
            index: gref.index(),
            granted,
            forced: !idle,
        });
    }
    // Not before all have been looked at: one of these may be named again, to be drained or
    // forced, and a use that began in between would not be seen.
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
