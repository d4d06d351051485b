//! A hostile domain that makes calls through its call page. The other parties are a granter, a
//! bystander and the monitor's state.

use crate::input::Input;
use abi::classic::{CopyOp, CopyOperand, GrantEntry, MapOp};
use abi::connect::XenbusState;
use abi::hypercall::{
    AttachTarget, COUNT, DONE, HypercallKind, KIND, OP_WORDS, OPS, OPS_MAX, RESULT, STATUS_WORD,
};
use abi::layout::info;
use abi::{DomId, GrantRef, GrantStatus, PAGE, Slot};
use monitor::event::EventPort;
use monitor::fake::{FakeSpace, SharedFake};
use monitor::hypercall::{CallPage, HypercallServer, MonitorState};
use monitor::memory::SharedDomainMemory;
use shmem::Span;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const CALLER: DomId = DomId(1);
/// Grants frames to the caller, never its frame 0.
const GRANTER: DomId = DomId(2);
/// Grants frames to the granter only.
const OTHER_GRANTER: DomId = DomId(3);
const FRAMES: u32 = 4;
const ENTRIES: u32 = 64;
const SLOTS: u32 = 16;
/// Contents of the bystander's frames and of the granter's frame 0.
const SECRET: u8 = 0xc5;

/// The regions are created once: a fuzzer runs this millions of times.
struct World {
    caller: Arc<SharedDomainMemory>,
    granter: Arc<SharedDomainMemory>,
    bystander: Arc<SharedDomainMemory>,
}

impl World {
    fn new() -> Self {
        let memory = |id| {
            Arc::new(SharedDomainMemory::create(id, FRAMES, ENTRIES, &[], None).expect("memory"))
        };
        Self {
            caller: memory(CALLER),
            granter: memory(GRANTER),
            bystander: memory(OTHER_GRANTER),
        }
    }

    /// Resets the regions to their initial contents.
    fn reset(&self) {
        for memory in [&self.caller, &self.granter, &self.bystander] {
            memory.info.span().fill(0).expect("own memory");
            memory.frames.span().fill(0).expect("own memory");
        }
        for span in self.secrets() {
            span.fill(SECRET).expect("own memory");
        }
    }

    /// Memory that the caller must neither read nor write.
    fn secrets(&self) -> [Span; 2] {
        [
            self.granter.frames.span().take(PAGE),
            self.bystander.frames.span(),
        ]
    }
}

/// Tests the wire form of every hypercall, and the monitor's answers to any call page.
pub fn hypercalls(bytes: &[u8]) {
    thread_local!(static WORLD: World = World::new());
    let mut input = Input::new(bytes);
    codecs(&mut input);
    WORLD.with(|world| {
        world.reset();
        serve(&mut input, world);
    });
}

/// Creates the monitor's state: three domains, and a connection between the granter and the caller.
fn books(world: &World) -> Arc<MonitorState> {
    let shared = Arc::new(MonitorState::new(Some(baselines::mechanisms)));
    {
        let mut tables = shared.grants.lock();
        tables.insert(CALLER, Arc::clone(&world.caller), SLOTS);
        tables.insert(GRANTER, Arc::clone(&world.granter), 0);
        tables.insert(OTHER_GRANTER, Arc::clone(&world.bystander), 0);
    }
    let port = |memory: &Arc<SharedDomainMemory>| {
        Arc::new(EventPort::create(Arc::clone(memory)).expect("eventfd"))
    };
    let (back, front) = (
        (GRANTER, port(&world.granter)),
        (CALLER, port(&world.caller)),
    );
    shared
        .connections
        .add(back, front, 0)
        .expect("the first connection");
    shared
}

fn serve(input: &mut Input<'_>, world: &World) {
    let shared = books(world);
    let space = SharedFake::new(Mutex::new(FakeSpace {
        refuse_next: input.bool(),
        ..FakeSpace::default()
    }));
    let page = CallPage::of(&world.caller).expect("a call page");
    let mut server = HypercallServer::new(
        CALLER,
        page,
        Arc::clone(&shared),
        SharedFake::clone(&space),
        Arc::default(),
    );

    let mut granted = BTreeMap::new();
    let mut number = 0;
    while !input.is_empty() {
        if input.bool() {
            grant(input, world, &mut granted);
            continue;
        }
        let call = world
            .caller
            .info
            .span()
            .skip(info::CALL)
            .take(info::CALL_PAGES * PAGE);
        let (kind, count) = fill(input, call);
        number += 1;
        server
            .serve(number)
            .expect("an address space that only refuses");
        answered(call, kind, count, number);
        only_granted(&space.lock().expect("nobody has panicked"), &granted);
        assert_eq!(leaked(&shared), 0);
    }

    secrets_are_kept(world);
    shared.end(CALLER, || {});
    assert_eq!(leaked(&shared), 0);
    nothing_in_use(world);
}

/// Returns the frames that the monitor's audit misses.
fn leaked(shared: &MonitorState) -> u64 {
    let (_, leaked) = shared.audit();
    leaked
}

/// Checks that the caller has mapped only granted pages, and has mapped read-only grants read-only.
fn only_granted(space: &FakeSpace, granted: &BTreeMap<u32, bool>) {
    for map in space.mapped.values() {
        assert_eq!(
            map.memory,
            u32::from(GRANTER.0),
            "a page of a domain that granted none"
        );
        let writable = granted
            .get(&map.frame)
            .expect("a page that was never granted");
        assert!(*writable || !map.writable, "a read-only page is writable");
        assert!(map.slot.0 < SLOTS);
    }
}

fn secrets_are_kept(world: &World) {
    for secret in world.secrets() {
        assert!(
            all(secret, |byte| byte == SECRET),
            "an ungranted page was written"
        );
    }
    assert!(
        all(world.caller.frames.span(), |byte| byte != SECRET),
        "a secret leaked"
    );
}

/// Checks that no grant of the granter is marked as in use, so that it can revoke its pages.
fn nothing_in_use(world: &World) {
    for index in 0..ENTRIES {
        let entry = world
            .granter
            .info
            .span()
            .load_u64(info::GRANT_TABLE + index as usize * 8);
        assert!(
            !GrantEntry(entry.expect("own memory")).in_use(),
            "grant {index} stays in use"
        );
    }
}

fn all(span: Span, holds: impl Fn(u8) -> bool) -> bool {
    let mut bytes = vec![0; span.len()];
    span.read(&mut bytes).expect("own memory");
    bytes.into_iter().all(holds)
}

/// Changes the grant table of the granter or the bystander; records the caller's grants.
fn grant(input: &mut Input<'_>, world: &World, granted: &mut BTreeMap<u32, bool>) {
    let (index, frame, readonly) = (input.u32() % ENTRIES, u32::from(input.u8()), input.bool());
    let granting = input.below(4) != 0;
    let (memory, to) = match granting {
        true => (&world.granter, CALLER),
        false => (&world.bystander, GRANTER),
    };
    // Frame 0 of the granter is never granted; frames that do not exist are granted, too.
    let frame = frame % (FRAMES + 2) + u32::from(granting);
    let at = info::GRANT_TABLE + index as usize * 8;
    let now = GrantEntry(memory.info.span().load_u64(at).expect("own memory"));
    // An honest granter does not change a grant in use.
    if now.in_use() {
        return;
    }
    let entry = GrantEntry::access(to, frame, readonly);
    memory
        .info
        .span()
        .store_u64(at, entry.0)
        .expect("own memory");
    if granting {
        *granted.entry(frame).or_default() |= !readonly;
    }
}

/// Writes a mostly valid call.
fn fill(input: &mut Input<'_>, call: Span) -> (u32, u32) {
    let kind = if input.below(16) == 0 {
        input.u32()
    } else {
        1 + input.below(6) as u32
    };
    let count = match input.below(16) {
        0 => input.near(OPS_MAX as u32),
        1 => input.u32(),
        few => few as u32 / 2,
    };
    call.store_u32(KIND, kind).expect("own memory");
    call.store_u32(COUNT, count).expect("own memory");
    for op in 0..(count as usize).min(OPS_MAX).min(12) {
        let words = words(input, kind);
        for (n, word) in words.into_iter().enumerate() {
            let at = OPS + (op * OP_WORDS + n) * 8;
            call.store_u64(at, word).expect("own memory");
        }
    }
    (kind, count)
}

fn words(input: &mut Input<'_>, kind: u32) -> [u64; 3] {
    if input.below(16) == 0 {
        return [input.u64(), input.u64(), input.u64()];
    }
    let gref = GrantRef(u32::from(input.u8()) % (ENTRIES + 1));
    let domain = DomId(input.u16() % 5);
    let slot = Slot(u32::from(input.u8()) % (SLOTS + 1));
    match HypercallKind::from_wire(kind) {
        Some(HypercallKind::GrantCopy) => {
            let own = CopyOperand::Own {
                frame: u32::from(input.u8()) % (FRAMES + 1),
            };
            let other = CopyOperand::Granted { domain, gref };
            let (src, dst) = if input.bool() {
                (own, other)
            } else {
                (other, own)
            };
            let (src_offset, dst_offset) = (input.u16() % 4097, input.u16() % 4097);
            CopyOp {
                src,
                dst,
                src_offset,
                dst_offset,
                len: input.u16() % 4097,
            }
            .encode()
        }
        Some(HypercallKind::GrantMap) => MapOp {
            domain,
            gref,
            slot,
            readonly: input.bool(),
        }
        .encode(),
        Some(HypercallKind::ConnectSet) => {
            [u64::from(input.u8() % 2), u64::from(input.u8() % 8), 0]
        }
        _ => [slot.0.into(), 0, 0],
    }
}

/// Checks that a call has an answer, and that every operation of a valid call has a defined status.
fn answered(call: Span, kind: u32, count: u32, number: u32) {
    assert_eq!(call.load_u32(DONE), Ok(number));
    let result = call.load_u32(RESULT).expect("own memory") as i32;
    let sensible = HypercallKind::from_wire(kind).is_some() && count as usize <= OPS_MAX;
    assert!(result <= 0 && (sensible || result < 0));
    let batch = matches!(
        HypercallKind::from_wire(kind),
        Some(HypercallKind::GrantCopy | HypercallKind::GrantMap | HypercallKind::GrantUnmap)
    );
    if !batch || result != 0 {
        return;
    }
    for op in 0..count as usize {
        let at = OPS + (op * OP_WORDS + STATUS_WORD) * 8;
        let status = call.load_u64(at).expect("own memory") as i64;
        assert!(
            i16::try_from(status).is_ok_and(|s| GrantStatus::from_wire(s) as i16 == s),
            "{status}"
        );
    }
}

/// Checks that words keep their meaning when they are decoded and encoded again.
fn codecs(input: &mut Input<'_>) {
    let words = [input.u64(), input.u64(), input.u64()];
    let copy = CopyOp::decode(words);
    assert_eq!(CopyOp::decode(copy.encode()), copy);
    let map = MapOp::decode(words);
    assert_eq!(MapOp::decode(map.encode()), map);
    let [one, two, _] = words;
    if let Some(attach) = AttachTarget::decode([one % 4, two]) {
        assert_eq!(attach.encode(), [one % 4, two]);
    }
    if let Some(state) = XenbusState::from_wire(one % 9) {
        assert_eq!(state as u64, one % 9);
        assert!(!state.may_become(XenbusState::Unknown));
    }
    let entry = GrantEntry(one);
    assert_eq!(entry.with_flags(entry.flags()), entry);
}
