//! Two connected domains. The monitor serves the first one through its call page.
#![allow(dead_code)] // each test uses its part

use abi::hypercall::{COUNT, DONE, KIND, OP_WORDS, OPS, RESULT, STATUS_WORD};
use abi::layout::info;
use abi::{DomId, GrantStatus};
use monitor::event::EventPort;
use monitor::fake::SharedFake;
use monitor::grant::GrantAudit;
use monitor::grant::mechanism::MechanismFactory;
use monitor::hypercall::{CallCounters, CallPage, HypercallServer, MonitorState};
use monitor::memory::SharedDomainMemory;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) const FRAMES: u32 = 4;
pub(crate) const ENTRIES: u32 = 16;
pub(crate) const SLOTS: u32 = 8;

/// Two connected domains, and the server of the first one.
pub(crate) struct Rig {
    pub(crate) shared: Arc<MonitorState>,
    pub(crate) memories: [Arc<SharedDomainMemory>; 2],
    pub(crate) server: HypercallServer<SharedFake>,
    /// The first domain's address space.
    pub(crate) space: SharedFake,
    pub(crate) counters: Arc<CallCounters>,
    pub(crate) number: u32,
}

impl Rig {
    pub(crate) fn new(mechanism: Option<MechanismFactory>) -> Self {
        let shared = Arc::new(MonitorState::new(mechanism));
        let memories = [DomId(0), DomId(1)].map(|id| {
            let memory =
                Arc::new(SharedDomainMemory::create(id, FRAMES, ENTRIES, &[], None).unwrap());
            shared.grants.lock().insert(id, Arc::clone(&memory), SLOTS);
            memory
        });
        let [a, b] = [0, 1].map(|n: u16| {
            let memory = Arc::clone(&memories[usize::from(n)]);
            (DomId(n), Arc::new(EventPort::create(memory).unwrap()))
        });
        shared.connections.add(a, b, 0).unwrap();
        let counters = Arc::new(CallCounters::default());
        let space = SharedFake::default();
        let server = HypercallServer::new(
            DomId(0),
            CallPage::of(&memories[0]).unwrap(),
            Arc::clone(&shared),
            Arc::clone(&space),
            Arc::clone(&counters),
        );
        Self {
            shared,
            memories,
            server,
            space,
            counters,
            number: 0,
        }
    }

    pub(crate) fn put_u32(&self, offset: usize, value: u32) {
        let span = self.memories[0].info.span();
        span.u32(info::CALL + offset)
            .unwrap()
            .store(value, Ordering::Relaxed);
    }

    pub(crate) fn get_u32(&self, offset: usize) -> u32 {
        let span = self.memories[0].info.span();
        span.u32(info::CALL + offset)
            .unwrap()
            .load(Ordering::Relaxed)
    }

    pub(crate) fn put(&self, op: usize, word: usize, value: u64) {
        let span = self.memories[0].info.span();
        let at = info::CALL + OPS + (op * OP_WORDS + word) * 8;
        span.u64(at).unwrap().store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, op: usize, word: usize) -> u64 {
        let span = self.memories[0].info.span();
        let at = info::CALL + OPS + (op * OP_WORDS + word) * 8;
        span.u64(at).unwrap().load(Ordering::Relaxed)
    }

    pub(crate) fn put_words(&self, op: usize, words: [u64; 3]) {
        for (word, value) in words.into_iter().enumerate() {
            self.put(op, word, value);
        }
    }

    pub(crate) fn call(&mut self, kind: u32, count: u32) -> Result<(), Errno> {
        self.put_u32(KIND, kind);
        self.put_u32(COUNT, count);
        self.number += 1;
        self.server.serve(self.number).unwrap();
        assert_eq!(self.get_u32(DONE), self.number);
        match self.get_u32(RESULT) as i32 {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(-errno)),
        }
    }

    /// Makes calls, each given by a kind, a count and the page's words, and then kills the first
    /// domain. Asserts that nothing leaks and that the domain's account is closed. Returns the
    /// final audit.
    pub(crate) fn survives(
        mut self,
        calls: Vec<(u32, u32, Vec<u64>)>,
    ) -> BTreeMap<DomId, GrantAudit> {
        for (kind, count, words) in calls {
            for (at, &word) in words.iter().enumerate() {
                self.put(at / OP_WORDS, at % OP_WORDS, word);
            }
            let _ = self.call(kind, count);
            assert_eq!(self.shared.audit().1, 0);
        }
        self.shared.grants.lock().fence(DomId(0));
        self.shared.end(DomId(0), || {});
        let (accounts, leaked) = self.shared.audit();
        assert_eq!(leaked, 0);
        assert!(!accounts.contains_key(&DomId(0)));
        accounts
    }

    /// Returns the status of an operation.
    pub(crate) fn status(&self, op: usize) -> GrantStatus {
        GrantStatus::from_wire(self.get(op, STATUS_WORD) as i64 as i16)
    }
}
