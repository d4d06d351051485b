//! The model of grants. It has the semantics of the monitor in a separate, simple implementation.

use crate::{DOMAINS, ENTRIES, FRAMES, Op, SLOTS};
use abi::classic::{CopyOp, CopyOperand, GrantEntry, MapOp, UnmapOp};
use abi::hypercall::HypercallKind;
use abi::layout::info;
use abi::{DomId, GrantRef, GrantStatus as S, PAGE, Slot};
use monitor::fake::{FakeSpace, SharedFake};
use monitor::grant::mechanism::{GrantResult, OtherCall};
use monitor::grant::{CountedTables, GrantAccounts, GrantAudit, Mechanism};
use monitor::memory::SharedDomainMemory;
use monitor::space::SpaceError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const IN_USE: u16 = GrantEntry::READING | GrantEntry::WRITING;

/// An entry in use in the model.
#[derive(Clone, Copy, Debug)]
struct EntryUse {
    user: DomId,
    frame: u32,
    readonly: bool,
    readers: u32,
    writers: u32,
}

/// A use of an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pin {
    granter: DomId,
    index: u32,
    frame: u32,
    write: bool,
}

/// Encodes an unmapping.
fn unmap_words(op: &UnmapOp) -> [u64; 3] {
    [op.slot.0.into(), 0, 0]
}

#[derive(Debug, Default)]
struct Model {
    alive: Vec<bool>,
    words: BTreeMap<(DomId, u32), u64>,
    uses: BTreeMap<(DomId, u32), EntryUse>,
    windows: BTreeMap<(DomId, u32), Pin>,
    pages: BTreeMap<(DomId, u32), Vec<u8>>,
}

impl Model {
    fn pin(&mut self, user: DomId, granter: DomId, gref: GrantRef, write: bool) -> Result<Pin, S> {
        if !self
            .alive
            .get(usize::from(granter.0))
            .is_some_and(|&alive| alive)
        {
            return Err(S::BadDomain);
        }
        if gref.0 >= ENTRIES {
            return Err(S::BadRef);
        }
        let key = (granter, gref.0);
        let word = self.words.entry(key).or_default();
        let fresh = !self.uses.contains_key(&key);
        if fresh {
            let entry = GrantEntry(*word);
            let kind = entry.flags() & !IN_USE & !GrantEntry::READONLY;
            if kind != GrantEntry::PERMIT_ACCESS || entry.domain() != user {
                return Err(S::BadRef);
            }
            if write && entry.readonly() {
                return Err(S::PermissionDenied);
            }
            if entry.frame() >= FRAMES {
                return Err(S::AddressTooBig);
            }
            *word &= !u64::from(IN_USE);
            *word |= u64::from(GrantEntry::READING);
            let (frame, readonly) = (entry.frame(), entry.readonly());
            let (readers, writers) = (0, 0);
            self.uses.insert(
                key,
                EntryUse {
                    user,
                    frame,
                    readonly,
                    readers,
                    writers,
                },
            );
        }
        let Some(used) = self.uses.get_mut(&key) else {
            unreachable!()
        };
        if used.user != user {
            return Err(S::BadRef);
        }
        if write && used.readonly {
            return Err(S::PermissionDenied);
        }
        if write && used.writers == 0 {
            *word |= u64::from(GrantEntry::WRITING);
        }
        *(if write {
            &mut used.writers
        } else {
            &mut used.readers
        }) += 1;
        Ok(Pin {
            granter,
            index: gref.0,
            frame: used.frame,
            write,
        })
    }

    fn unpin(&mut self, pin: Pin) {
        let key = (pin.granter, pin.index);
        let used = self.uses.get_mut(&key).expect("unpinned but not pinned");
        *(if pin.write {
            &mut used.writers
        } else {
            &mut used.readers
        }) -= 1;
        let mut ended = 0;
        if used.writers == 0 {
            ended = GrantEntry::WRITING;
        }
        if used.writers == 0 && used.readers == 0 {
            ended = IN_USE;
            self.uses.remove(&key);
        }
        *self.words.entry(key).or_default() &= !u64::from(ended);
    }

    /// Returns the number of distinct frames of a domain that its table grants or that are in use.
    fn granted(&self, id: DomId) -> u32 {
        let words = self.words.iter().filter(|((of, _), _)| *of == id);
        let entries = words.map(|(_, word)| GrantEntry(*word));
        let offered = entries
            .filter(|entry| entry.permits() && entry.frame() < FRAMES)
            .map(GrantEntry::frame);
        let used = self.uses.iter().filter(|((of, _), _)| *of == id);
        let frames: BTreeSet<u32> = offered.chain(used.map(|(_, u)| u.frame)).collect();
        frames.len() as u32
    }

    /// Returns the number of distinct frames in a domain's window.
    fn mapped(&self, id: DomId) -> u32 {
        let own = self.windows.iter().filter(|((of, _), _)| *of == id);
        let frames: BTreeSet<(DomId, u32)> = own.map(|(_, pin)| (pin.granter, pin.frame)).collect();
        frames.len() as u32
    }

    /// Returns whether other domains still map a dead domain's memory.
    fn is_mapped_by_others(&self, id: DomId) -> bool {
        self.windows
            .iter()
            .any(|((user, _), pin)| pin.granter == id && *user != id)
    }
}

/// The monitor's grant code with real memory, and the model. Both execute the same operations.
pub(crate) struct Rig {
    pub(crate) grants: Arc<GrantAccounts>,
    mechanism: Box<dyn Mechanism>,
    memories: Vec<Arc<SharedDomainMemory>>,
    callers: Vec<Option<WorkerState>>,
    model: Model,
}

/// State of a domain's worker.
struct WorkerState {
    space: SharedFake,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let grants = Arc::new(GrantAccounts::default());
        let mut model = Model::default();
        let mut memories = Vec::new();
        let mut callers = Vec::new();
        let mechanism = baselines::mechanisms(&grants);
        for id in (0..DOMAINS).map(DomId) {
            let memory =
                Arc::new(SharedDomainMemory::create(id, FRAMES, ENTRIES, &[], None).unwrap());
            grants.lock().insert(id, Arc::clone(&memory), SLOTS);
            memories.push(memory);
            let space = SharedFake::default();
            let reached = Arc::new(Mutex::new(Arc::clone(&space)));
            grants.lock().set_space(id, Some(reached));
            callers.push(Some(WorkerState { space }));
            model.alive.push(true);
            for frame in 0..FRAMES {
                model.pages.insert((id, frame), vec![0; PAGE]);
            }
        }
        Self {
            grants,
            mechanism,
            memories,
            callers,
            model,
        }
    }

    fn entry(&self, of: DomId, index: u32) -> &'static AtomicU64 {
        let at = info::GRANT_TABLE + index as usize * 8;
        self.memories[usize::from(of.0)]
            .info
            .span()
            .u64(at)
            .unwrap()
    }

    fn is_alive(&self, of: DomId) -> bool {
        self.model.alive[usize::from(of.0)]
    }

    /// Returns the contents of a domain's address space: slot, frame, writable.
    pub(crate) fn mapped(&self, of: DomId) -> Vec<(u32, u32, bool)> {
        let caller = self.callers[usize::from(of.0)].as_ref();
        let mapped = caller.map(|caller| caller.space.lock().unwrap().mapped.clone());
        let mapped = mapped.unwrap_or_default().into_values();
        mapped
            .map(|map| (map.slot.0, map.frame, map.writable))
            .collect()
    }

    /// Executes one operation in the monitor and in the model, and compares them.
    pub(crate) fn step(&mut self, op: &Op) {
        match op {
            // A dead domain executes no operation.
            Op::Grant { of, .. }
            | Op::EndAccess { of, .. }
            | Op::Fill { of, .. }
            | Op::Map { of, .. }
            | Op::Unmap { of, .. }
            | Op::Copy { of, .. }
            | Op::Kill { of, .. }
                if !self.is_alive(*of) => {}
            Op::Grant { of, index, entry } => {
                self.entry(*of, *index).store(*entry, Ordering::Relaxed);
                self.model.words.insert((*of, *index), *entry);
            }
            Op::EndAccess { of, index } => {
                let place = self.entry(*of, *index);
                let now = GrantEntry(place.load(Ordering::Relaxed));
                if !now.in_use() {
                    place.store(0, Ordering::Relaxed);
                    self.model.words.insert((*of, *index), 0);
                }
            }
            Op::Fill { of, frame, byte } => {
                let page = self.memories[usize::from(of.0)].frame(*frame).unwrap();
                page.fill(*byte).unwrap();
                self.model.pages.insert((*of, *frame), vec![*byte; PAGE]);
            }
            Op::Map { of, ops, refused } => self.map(*of, ops, *refused),
            Op::Unmap { of, ops } => self.unmap(*of, ops),
            Op::Copy { of, ops } => self.copy(*of, ops),
            Op::Kill { of, lost } => self.kill(*of, *lost),
        }
        self.compare();
    }

    fn with_space(&mut self, of: DomId, change: impl FnOnce(&mut FakeSpace)) {
        let caller = self.callers[usize::from(of.0)].as_mut().unwrap();
        change(&mut caller.space.lock().unwrap());
    }

    /// Makes a call in the form of the call page.
    fn call(
        &mut self,
        of: DomId,
        kind: HypercallKind,
        ops: &[[u64; 3]],
    ) -> Result<Vec<S>, SpaceError> {
        let ends = &|_| unreachable!("the call has no connection");
        let caller = of;
        let call = OtherCall {
            caller,
            kind,
            ops,
            ends,
        };
        let WorkerState { space } = self.callers[usize::from(of.0)].as_mut().unwrap();
        match self.mechanism.call(space, &call)? {
            Some(GrantResult::Batch(statuses)) => Ok(statuses),
            other => panic!("{other:?}"),
        }
    }

    /// Runs the audit of a monitor that has only classic grants.
    fn audit(&self) -> (BTreeMap<DomId, GrantAudit>, u64) {
        let counted = CountedTables::new(Arc::default());
        self.grants.audit(&counted, Some(&*self.mechanism))
    }

    /// Runs a batch of mappings in the model. Returns the statuses, and the reserved slots with
    /// their pins.
    fn model_map(&mut self, of: DomId, ops: &[MapOp]) -> (Vec<S>, Vec<(u32, Pin)>) {
        let mut expected = Vec::new();
        let mut pins = Vec::new();
        for op in ops {
            let free = op.slot.0 < SLOTS && !self.model.windows.contains_key(&(of, op.slot.0));
            expected.push(if !free {
                S::BadSlot
            } else {
                match self.model.pin(of, op.domain, op.gref, !op.readonly) {
                    Ok(pin) => {
                        self.model.windows.insert((of, op.slot.0), pin);
                        pins.push((op.slot.0, pin));
                        S::Okay
                    }
                    Err(why) => why,
                }
            });
        }
        (expected, pins)
    }

    fn map(&mut self, of: DomId, ops: &[MapOp], refused: bool) {
        let (mut expected, pins) = self.model_map(of, ops);
        if refused && !pins.is_empty() {
            for (slot, pin) in pins {
                self.model.windows.remove(&(of, slot));
                self.model.unpin(pin);
            }
            for status in expected.iter_mut().filter(|s| **s == S::Okay) {
                *status = S::NoSpace;
            }
        }
        self.with_space(of, |space| space.refuse_next = refused);
        let words: Vec<_> = ops.iter().map(|op| op.encode()).collect();
        let statuses = self.call(of, HypercallKind::GrantMap, &words).unwrap();
        self.with_space(of, |space| space.refuse_next = false);
        assert_eq!(statuses, expected, "{of} maps {ops:?}");
    }

    fn unmap(&mut self, of: DomId, ops: &[UnmapOp]) {
        let mut expected = Vec::new();
        for op in ops {
            let pin = self.model.windows.remove(&(of, op.slot.0));
            expected.push(pin.map_or(S::BadHandle, |pin| {
                self.model.unpin(pin);
                S::Okay
            }));
        }
        let words: Vec<_> = ops.iter().map(unmap_words).collect();
        let statuses = self.call(of, HypercallKind::GrantUnmap, &words).unwrap();
        assert_eq!(statuses, expected, "{of} unmaps {ops:?}");
    }

    fn copy(&mut self, of: DomId, ops: &[CopyOp]) {
        let words: Vec<_> = ops.iter().map(|op| op.encode()).collect();
        let statuses = self.call(of, HypercallKind::GrantCopy, &words).unwrap();
        let mut pins = Vec::new();
        let mut expected = Vec::new();
        let mut jobs = Vec::new();
        for op in ops {
            let job = self.copy_pages(of, op, &mut pins);
            expected.push(job.err().unwrap_or(S::Okay));
            jobs.push(job.ok().map(|pages| (pages, *op)));
        }
        for ((src, dst), op) in jobs.into_iter().flatten() {
            self.copy_bytes(src, dst, &op);
        }
        for pin in pins {
            self.model.unpin(pin);
        }
        assert_eq!(statuses, expected, "{of} copies {ops:?}");
    }

    /// Pins both pages of a copy in the model, and returns them.
    #[expect(clippy::type_complexity)]
    fn copy_pages(
        &mut self,
        of: DomId,
        op: &CopyOp,
        pins: &mut Vec<Pin>,
    ) -> Result<((DomId, u32), (DomId, u32)), S> {
        let crosses = |offset: u16| usize::from(offset) + usize::from(op.len) > PAGE;
        if crosses(op.src_offset) || crosses(op.dst_offset) {
            return Err(S::BadCopyArg);
        }
        let page = |model: &mut Model, place, write| match place {
            CopyOperand::Own { frame } if frame < FRAMES => Ok(((of, frame), None)),
            CopyOperand::Own { .. } => Err(S::AddressTooBig),
            CopyOperand::Granted { domain, gref } => model
                .pin(of, domain, gref, write)
                .map(|pin| ((domain, pin.frame), Some(pin))),
        };
        let (src, src_pin) = page(&mut self.model, op.src, false)?;
        match page(&mut self.model, op.dst, true) {
            Ok((dst, dst_pin)) => {
                pins.extend(src_pin);
                pins.extend(dst_pin);
                Ok((src, dst))
            }
            Err(why) => {
                if let Some(pin) = src_pin {
                    self.model.unpin(pin);
                }
                Err(why)
            }
        }
    }

    fn copy_bytes(&mut self, src: (DomId, u32), dst: (DomId, u32), op: &CopyOp) {
        let (from, to) = (usize::from(op.src_offset), usize::from(op.dst_offset));
        let len = usize::from(op.len);
        let overlaps = src == dst && from.abs_diff(to) < len;
        if overlaps {
            // The result of an overlapping copy is unspecified, so the model adopts it.
            let page = self.memories[usize::from(dst.0.0)].frame(dst.1).unwrap();
            let mut bytes = vec![0; PAGE];
            page.read(&mut bytes).unwrap();
            self.model.pages.insert(dst, bytes);
        } else {
            let bytes = self.model.pages[&src][from..from + len].to_vec();
            let page = self.model.pages.get_mut(&dst).unwrap();
            page[to..to + len].copy_from_slice(&bytes);
        }
    }

    /// Kills a domain, and runs the monitor's cleanup. With `lost`, the agent first stops answering
    /// in a map (true) or unmap (false) call.
    fn kill(&mut self, of: DomId, lost: Option<bool>) {
        match lost {
            Some(true) => self.lose_map(of),
            Some(false) => self.lose_unmap(of),
            None => {}
        }
        assert_eq!(self.audit().1, 0, "before the death");
        self.grants.lock().fence(of);
        self.model.alive[usize::from(of.0)] = false;
        let usable = self.grants.lock().alive(of).is_some();
        assert!(!usable, "the grants of a dead domain can be pinned");
        self.callers[usize::from(of.0)] = None;
        self.grants.lock().set_space(of, None);
        self.mechanism.tear_down(of);
        self.grants.lock().clear(of);
        for slot in 0..SLOTS {
            if let Some(pin) = self.model.windows.remove(&(of, slot)) {
                self.model.unpin(pin);
            }
        }
        // The monitor keeps the memory exactly while an address space has descriptors of it.
        let number = u32::from(of.0);
        let mut left = self.callers.iter().flatten();
        let is_mapped = left.any(|caller| caller.space.lock().unwrap().memories.contains(&number));
        assert_eq!(self.grants.lock().has_account(of), is_mapped);
        assert_eq!(self.audit().1, 0, "after the cleanup");
    }

    /// Maps all grants of all domains. The agent executes the call, but does not answer.
    fn lose_map(&mut self, of: DomId) {
        let all = (0..DOMAINS).flat_map(|granter| (0..ENTRIES).map(move |gref| (granter, gref)));
        let ops: Vec<MapOp> = all
            .zip((0..SLOTS).cycle())
            .map(|((granter, gref), slot)| MapOp {
                domain: DomId(granter),
                gref: GrantRef(gref),
                slot: Slot(slot),
                readonly: true,
            })
            .collect();
        let (_, pins) = self.model_map(of, &ops);
        self.with_space(of, |space| space.lose_next = true);
        let words: Vec<_> = ops.iter().map(|op| op.encode()).collect();
        let outcome = self.call(of, HypercallKind::GrantMap, &words);
        assert_eq!(outcome.is_err(), !pins.is_empty());
        assert!(matches!(outcome, Ok(_) | Err(SpaceError::Lost(_))));
    }

    /// Unmaps a mapped slot. The agent executes the call, but does not answer.
    fn lose_unmap(&mut self, of: DomId) {
        let mapped = |slot: &u32| self.model.windows.contains_key(&(of, *slot));
        let Some(slot) = (0..SLOTS).find(mapped) else {
            return;
        };
        self.with_space(of, |space| space.lose_next = true);
        let words = unmap_words(&UnmapOp { slot: Slot(slot) });
        let outcome = self.call(of, HypercallKind::GrantUnmap, &[words]);
        assert!(matches!(outcome, Err(SpaceError::Lost(_))));
    }

    /// Returns the contents of an entry in the model.
    fn model_word(&self, of: DomId, index: u32) -> u64 {
        self.model.words.get(&(of, index)).copied().unwrap_or(0)
    }

    fn compare(&self) {
        let (accounts, leaked) = self.audit();
        assert_eq!(leaked, 0);
        for id in (0..DOMAINS).map(DomId) {
            let is_expected = self.is_alive(id) || self.model.is_mapped_by_others(id);
            assert_eq!(accounts.contains_key(&id), is_expected, "account of {id}");
            for index in 0..ENTRIES {
                let word = self.entry(id, index).load(Ordering::Relaxed);
                let model = self.model_word(id, index);
                assert_eq!(word, model, "entry {index} of {id}");
            }
            for frame in 0..FRAMES {
                let mut bytes = vec![0; PAGE];
                let page = self.memories[usize::from(id.0)].frame(frame).unwrap();
                page.read(&mut bytes).unwrap();
                assert!(
                    bytes == self.model.pages[&(id, frame)],
                    "frame {frame} of {id}"
                );
            }
            self.compare_window(id);
            let used: Vec<(u32, u32, DomId, u32, bool)> = self
                .model
                .uses
                .iter()
                .filter(|((granter, _), _)| *granter == id)
                .map(|((_, index), u)| {
                    (
                        *index,
                        u.frame,
                        u.user,
                        u.readers + u.writers,
                        u.writers > 0,
                    )
                })
                .collect();
            let audit = accounts.get(&id).cloned().unwrap_or_default();
            if is_expected {
                assert_eq!(
                    audit.granted.len() as u32,
                    self.model.granted(id),
                    "granted by {id}"
                );
                assert_eq!(
                    audit.mapped.len() as u32,
                    self.model.mapped(id),
                    "mapped by {id}"
                );
            }
            let in_use: Vec<_> = audit
                .in_use
                .iter()
                .map(|g| (g.index, g.frame, g.by, g.mappings, g.writable))
                .collect();
            assert_eq!(in_use, used, "uses of {id}'s grants");
        }
    }

    fn compare_window(&self, id: DomId) {
        let Some(caller) = &self.callers[usize::from(id.0)] else {
            return;
        };
        let mapped: Vec<_> = caller
            .space
            .lock()
            .unwrap()
            .mapped
            .values()
            .map(|m| (m.slot.0, m.memory, m.frame, m.writable))
            .collect();
        let model: Vec<_> = self
            .model
            .windows
            .iter()
            .filter(|((of, _), _)| *of == id)
            .map(|((_, slot), pin)| (*slot, u32::from(pin.granter.0), pin.frame, pin.write))
            .collect();
        assert_eq!(mapped, model, "window of {id}");
    }

    /// Kills all domains, and checks that nothing remains.
    pub(crate) fn end(mut self) {
        for id in (0..DOMAINS).map(DomId) {
            self.step(&Op::Kill { of: id, lost: None });
        }
        let (accounts, leaked) = self.audit();
        assert!(accounts.is_empty() && leaked == 0);
        for memory in self.memories {
            assert_eq!(
                Arc::strong_count(&memory),
                1,
                "the monitor still has memory"
            );
        }
    }
}
