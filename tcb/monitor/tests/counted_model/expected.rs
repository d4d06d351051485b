//! The state that the model expects, and its comparison with the monitor's state.

use super::*;

impl Rig {
    pub(super) fn model_revoke(
        &mut self,
        guest: u16,
        grants: &[(u32, Revocation, bool)],
    ) -> Vec<S> {
        let mut leaving = Vec::new();
        let mut expected = Vec::new();
        let table = self.tables.get_mut(&guest).unwrap();
        for &(index, how, stale) in grants {
            let already_revoked = leaving.iter().any(|(before, _)| *before == index);
            let Some(grant) = table
                .grants
                .get_mut(&index)
                .filter(|_| !stale && !already_revoked)
            else {
                expected.push(S::BadRef);
                continue;
            };
            let busy = table.status[index as usize] != 0;
            expected.push(if !busy || how == Revocation::Force {
                leaving.push((index, busy));
                S::Okay
            } else {
                grant.draining |= how == Revocation::Drain;
                S::Again
            });
        }
        self.model_leave(guest, &leaving);
        expected
    }

    /// Removes grants. Those in use enter quarantine; if it is full, the user dies.
    pub(super) fn model_leave(&mut self, guest: u16, leaving: &[(u32, bool)]) {
        if leaving.is_empty() {
            return;
        }
        let bound = self.tables[&guest].bound;
        let mut alive = !bound || self.survives();
        for &(index, _) in leaving.iter().filter(|(_, busy)| *busy) {
            alive = alive && !self.dead && self.charge(guest, index);
        }
        let table = self.tables.get_mut(&guest).unwrap();
        for (index, _) in leaving {
            table.grants.remove(index);
        }
        if !alive {
            self.model_lost_user(guest);
        }
    }

    pub(super) fn charge(&mut self, guest: u16, index: u32) -> bool {
        let used = |tables: &BTreeMap<u16, Table>| -> usize {
            tables.values().map(|t| t.quarantine.len()).sum()
        };
        if used(&self.tables) >= COLLATERAL as usize {
            for table in self.tables.values_mut() {
                let status = table.status;
                table.quarantine.retain(|n| status[*n as usize] != 0);
            }
        }
        if used(&self.tables) >= COLLATERAL as usize {
            self.user_dies();
            return false;
        }
        self.tables
            .get_mut(&guest)
            .unwrap()
            .quarantine
            .insert(index);
        true
    }

    /// Ends the granter's half, which revokes all grants by force.
    pub(super) fn model_granter_ends(&mut self, guest: u16) {
        let table = &self.tables[&guest];
        let leaving: Vec<_> = table
            .grants
            .keys()
            .map(|&index| (index, table.status[index as usize] != 0))
            .collect();
        self.model_leave(guest, &leaving);
        if self.tables[&guest].bound && !self.survives() {
            self.model_lost_user(guest);
        }
        let table = self.tables.get_mut(&guest).unwrap();
        table.granter_done = true;
        if !table.bound {
            self.tables.remove(&guest);
        }
    }

    pub(super) fn compare(&self) {
        let (accounts, leaked) = self.grants.audit(&self.counted, None);
        assert_eq!(leaked, 0);
        let mut expected = BTreeMap::new();
        for (&guest, table) in self.tables.iter().filter(|(_, t)| t.bound) {
            for (&index, grant) in &table.grants {
                expected.insert(first(guest) + index, (grant.frame, !grant.readonly));
            }
            for index in 0..ENTRIES {
                let word = self.translation(guest, index);
                let valid = |grant: &Grant| {
                    let generation = table.generation[index as usize];
                    let entry = Translation::valid(grant.frame, generation, grant.readonly);
                    if grant.draining {
                        entry.revoking()
                    } else {
                        entry
                    }
                };
                let model = table.grants.get(&index).map_or(Translation::INVALID, valid);
                assert!(self.dead || word == Some(model), "entry {index} of {guest}");
            }
        }
        let spy = self.spy.lock().unwrap();
        let is_page = |slot: u32| (1..3).any(|g| (first(g)..first(g) + ENTRIES).contains(&slot));
        let pages = spy.fake.mapped.values().filter(|m| is_page(m.slot.0));
        let mapped: BTreeMap<_, _> = pages
            .map(|map| (map.slot.0, (map.frame, map.writable)))
            .collect();
        if !self.dead {
            assert_eq!(mapped, expected, "the user's window differs");
            let tables = self.tables.values().filter(|t| t.bound).count() as u32;
            let own = spy.fake.mapped.len() - expected.len();
            assert_eq!(own as u32, tables * table_slots(ENTRIES));
            for map in spy.fake.mapped.values().filter(|m| !is_page(m.slot.0)) {
                // N-3: the translation sub-table is not writable.
                assert_eq!(map.writable, map.frame != 0);
            }
            let used: usize = self.tables.values().map(|t| t.quarantine.len()).sum();
            assert_eq!(accounts[&USER].collateral_used as usize, used);
            assert!(used <= COLLATERAL as usize);
        } else {
            assert!(mapped.is_empty(), "a page of a dead domain is mapped");
        }
        for (id, memory) in self.memories.iter().enumerate().skip(1) {
            for frame in 0..FRAMES {
                let mut bytes = [0; PAGE];
                memory.frame(frame).unwrap().read(&mut bytes).unwrap();
                assert_eq!(bytes, [frame as u8 + 1; PAGE], "frame {frame} of {id}");
            }
        }
    }
}
