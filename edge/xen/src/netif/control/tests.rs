use super::*;
use abi::PAGE;
use proptest::prelude::*;
use shmem::Area;
use std::collections::BTreeMap;
use vif::ring::Format;

/// Pages that a guest has granted, by their references.
#[derive(Default)]
struct Granted(BTreeMap<u32, Vec<u8>>);

impl ReadGranted for Granted {
    fn fetch(&self, gref: u32, bytes: &mut [u8]) -> bool {
        let page = self.0.get(&gref).and_then(|page| page.get(..bytes.len()));
        page.map(|page| bytes.copy_from_slice(page)).is_some()
    }
}

fn hashing() -> Hashing {
    let memory = Area::anonymous(PAGE).unwrap().span();
    Hashing::in_memory(memory.sub(0, Hashing::BYTES).unwrap())
}

fn request(id: u16, kind: u16, data: [u32; 3]) -> [u32; 4] {
    let [one, two, three] = data;
    [u32::from(id) | u32::from(kind) << 16, one, two, three]
}

/// Returns a guest whose page 5 holds a table of these queues.
fn table(queues: &[u32]) -> Granted {
    let bytes = queues.iter().flat_map(|queue| queue.to_le_bytes());
    let mut page: Vec<u8> = bytes.collect();
    page.resize(PAGE, 0);
    Granted(BTreeMap::from([(5, page)]))
}

const FOUR: u32 = 4;

#[test]
fn netif_29_requests_have_the_headers_answers() {
    use kind::*;
    let granted = table(&[3, 1, 0, 2]);
    let hashing = hashing();
    let all = HashTypes::ALL.0;
    let key = KEY_MAX as u32;
    // The requests in this order:
    for (n, (kind, data, wanted)) in [
        (GET_HASH_FLAGS, [0; 3], Err(NotSupported)),
        (SET_HASH_FLAGS, [all, 0, 0], Err(InvalidParameter)),
        (SET_HASH_ALGORITHM, [2, 0, 0], Err(InvalidParameter)),
        (SET_HASH_ALGORITHM, [1, 0, 0], Ok(0)),
        (GET_HASH_FLAGS, [0; 3], Ok(15)),
        (SET_HASH_FLAGS, [all + 1, 0, 0], Err(InvalidParameter)),
        (SET_HASH_FLAGS, [all, 0, 0], Ok(0)),
        (SET_HASH_KEY, [5, key, 0], Ok(0)),
        (SET_HASH_KEY, [5, 0, 0], Ok(0)),
        (SET_HASH_KEY, [6, key, 0], Err(InvalidParameter)),
        (SET_HASH_KEY, [5, key + 1, 0], Err(BufferOverflow)),
        (SET_HASH_KEY, [5, u32::MAX, 0], Err(BufferOverflow)),
        (GET_HASH_MAPPING_SIZE, [0; 3], Ok(128)),
        (SET_HASH_MAPPING, [5, 4, 0], Err(InvalidParameter)),
        (SET_HASH_MAPPING_SIZE, [129, 0, 0], Err(InvalidParameter)),
        (
            SET_HASH_MAPPING_SIZE,
            [u32::MAX, 0, 0],
            Err(InvalidParameter),
        ),
        (SET_HASH_MAPPING_SIZE, [8, 0, 0], Ok(0)),
        (SET_HASH_MAPPING, [5, 4, 4], Ok(0)),
        (SET_HASH_MAPPING, [5, 4, 5], Err(InvalidParameter)),
        (SET_HASH_MAPPING, [5, 129, 0], Err(BufferOverflow)),
        (SET_HASH_MAPPING, [5, u32::MAX, 2], Err(BufferOverflow)),
        (SET_HASH_MAPPING, [5, 2, u32::MAX], Err(BufferOverflow)),
        (SET_HASH_MAPPING, [6, 4, 0], Err(InvalidParameter)),
        (SET_HASH_MAPPING, [6, 0, 8], Ok(0)),
        // A request for static grants, and an unknown request.
        (8, [0; 3], Err(NotSupported)),
        (0, [0; 3], Err(NotSupported)),
        (u16::MAX, [0; 3], Err(NotSupported)),
    ]
    .into_iter()
    .enumerate()
    {
        let request = request(n as u16, kind, data);
        let (status, data) = match wanted {
            Ok(data) => (Success, data),
            Err(status) => (status, 0),
        };
        let answer = answer(hashing, FOUR, &granted, request);
        assert_eq!(answer, [request[0], status as u32, data], "request {n}");
    }
}

#[test]
fn a_table_with_an_unknown_queue_changes_nothing() {
    let hashing = hashing();
    hashing.set_on(true);
    hashing.set_types(HashTypes::ALL);
    hashing.set_entries(1);
    let set = |queue| {
        let request = request(1, kind::SET_HASH_MAPPING, [5, 1, 0]);
        answer(hashing, FOUR, &table(&[queue]), request)[1]
    };
    let chosen = || hashing.queue(&[0xff; 60], 4);
    assert_eq!((set(3), chosen()), (Success as u32, Some(3)));
    for queue in [4, u32::MAX] {
        assert_eq!((set(queue), chosen()), (InvalidParameter as u32, Some(3)));
    }
}

/// A ring, and the record of the last taken request.
struct Shared {
    pages: GrantedRingPages,
    taken: TakenRequest,
}

fn shared() -> Shared {
    let page = Area::anonymous(PAGE).unwrap().span();
    let pages = GrantedRingPages::new(Format::Xen, &[page], Span::EMPTY).unwrap();
    let noted = Area::anonymous(PAGE).unwrap().span();
    Shared {
        pages,
        taken: TakenRequest::in_memory(noted),
    }
}

impl Shared {
    fn at(index: u32) -> usize {
        64 + (index % SLOTS) as usize * 16
    }

    fn send(&self, request: [u32; 4]) -> u32 {
        let index = self.pages.index(RingIndex::ReqProd, Ordering::Acquire);
        self.pages.write_run(0, Self::at(index), &[request]);
        let next = index.wrapping_add(1);
        self.pages
            .set_index(RingIndex::ReqProd, next, Ordering::Release);
        index
    }

    fn answer(&self, index: u32) -> [u32; 3] {
        let mut slot = [[0; 3]];
        self.pages.read(0, Self::at(index), 12, &mut slot);
        slot[0]
    }

    fn shown(&self) -> u32 {
        self.pages.index(RingIndex::RspProd, Ordering::Acquire)
    }

    fn ring(&self) -> ControlRing {
        ControlRing::new(self.pages, self.taken)
    }
}

#[test]
fn requests_are_answered_in_their_slots() {
    let shared = shared();
    let (hashing, granted) = (hashing(), Granted::default());
    let mut ring = shared.ring();
    assert!(!ring.has_work());
    shared
        .pages
        .set_index(RingIndex::RspEvent, 2, Ordering::Release);
    for (id, notifies) in [(7, false), (8, true), (9, false)] {
        let index = shared.send(request(id, kind::GET_HASH_MAPPING_SIZE, [0; 3]));
        assert!(ring.has_work());
        assert_eq!(ring.serve(hashing, FOUR, &granted), notifies);
        let head = u32::from(id) | 4 << 16;
        assert_eq!(shared.answer(index), [head, 0, 128]);
        assert_eq!(shared.shown(), index + 1);
        let asked = shared.pages.index(RingIndex::ReqEvent, Ordering::Acquire);
        assert_eq!(
            asked,
            index + 2,
            "a notification of the next request is enabled"
        );
    }
}

#[test]
fn a_ring_wraps() {
    let shared = shared();
    let (hashing, granted) = (hashing(), Granted::default());
    let mut ring = shared.ring();
    for round in 0..3 {
        let all: Vec<u32> = (0..SLOTS)
            .map(|n| shared.send(request((round * SLOTS + n) as u16, 4, [0; 3])))
            .collect();
        ring.serve(hashing, FOUR, &granted);
        for index in all {
            assert_eq!(shared.answer(index), [index | 4 << 16, 0, 128]);
        }
    }
    assert!(!ring.has_work());
}

#[test]
fn a_guest_that_overruns_its_ring_is_not_served() {
    let shared = shared();
    let mut ring = shared.ring();
    let beyond = SLOTS + 1;
    shared
        .pages
        .set_index(RingIndex::ReqProd, beyond, Ordering::Release);
    assert!(ring.has_work());
    ring.serve(hashing(), FOUR, &Granted::default());
    assert!(!ring.has_work());
    assert_eq!(shared.shown(), 0);
}

#[test]
fn a_kill_before_the_answer_leaves_the_request() {
    let shared = shared();
    let (hashing, granted) = (hashing(), Granted::default());
    let request = request(7, kind::SET_HASH_ALGORITHM, [1, 0, 0]);
    let index = shared.send(request);
    shared.ring().serve(hashing, FOUR, &granted);
    // The answer has overwritten the request and is not published.
    shared
        .pages
        .set_index(RingIndex::RspProd, index, Ordering::Release);
    hashing.begin();
    let mut next = shared.ring();
    assert!(next.has_work());
    next.serve(hashing, FOUR, &granted);
    assert!(hashing.is_on());
    assert_eq!(shared.answer(index), [request[0], 0, 0]);
    assert_eq!(shared.shown(), index + 1);
    // Another request does not replace a recorded one.
    shared.send([4 << 16, 0, 0, 0]);
    next.serve(hashing, FOUR, &granted);
    assert_eq!(shared.answer(index + 1), [4 << 16, 0, 128]);
}

proptest! {
    #[test]
    fn any_request_notifies(
        requests: Vec<[u32; 4]>,
        page in prop::collection::vec(any::<u8>(), PAGE),
    ) {
        let granted = Granted(BTreeMap::from([(0, page)]));
        let hashing = hashing();
        for request in requests {
            let [head, status, _] = answer(hashing, FOUR, &granted, request);
            prop_assert_eq!(head, request[0]);
            prop_assert!(status <= BufferOverflow as u32);
            prop_assert!(hashing.queue(&[2; 60], 4).is_none_or(|queue| queue < 4));
        }
    }
}
