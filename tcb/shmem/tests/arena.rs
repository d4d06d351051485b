//! Tests of a domain's heap, which is also the allocator of this test program.
#![allow(unsafe_code)] // a test of `GlobalAlloc` calls its unsafe functions

use proptest::prelude::*;
use shmem::arena::Arena;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;

#[global_allocator]
static HEAP: Arena<{ 256 << 20 }> = Arena::new();

#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc {
        size: usize,
        align: u32,
        zeroed: bool,
    },
    Realloc {
        which: usize,
        size: usize,
    },
    Free {
        which: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![0..200_usize, 0..5000_usize, 0..300_000_usize];
    prop_oneof![
        4 => (size.clone(), 0..13_u32, any::<bool>())
            .prop_map(|(size, align, zeroed)| Op::Alloc { size, align, zeroed }),
        2 => (any::<usize>(), size).prop_map(|(which, size)| Op::Realloc { which, size }),
        3 => any::<usize>().prop_map(|which| Op::Free { which }),
    ]
}

/// A live block, filled with the test's mark.
struct Block {
    layout: Layout,
    mark: u8,
}

fn check(start: usize, block: &Block) {
    let pointer = std::ptr::with_exposed_provenance::<u8>(start);
    // SAFETY: the block is live and was filled over its whole length.
    let bytes = unsafe { std::slice::from_raw_parts(pointer, block.layout.size()) };
    assert!(
        bytes.iter().all(|&byte| byte == block.mark),
        "a live block was overwritten"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn blocks_are_disjoint_aligned_and_unchanged(ops in prop::collection::vec(op(), 1..300)) {
        let mut live: BTreeMap<usize, Block> = BTreeMap::new();
        for (n, op) in ops.into_iter().enumerate() {
            let mark = n as u8 | 1;
            let nth = |live: &BTreeMap<usize, Block>, which: usize| {
                live.keys().nth(which % live.len().max(1)).copied()
            };
            let (pointer, layout, preserved) = match op {
                Op::Alloc { size, align, zeroed } => {
                    let layout = Layout::from_size_align(size, 1 << align).unwrap();
                    // SAFETY: the trait permits these calls; this arena also accepts a size of 0.
                    let pointer = unsafe {
                        if zeroed { HEAP.alloc_zeroed(layout) } else { HEAP.alloc(layout) }
                    };
                    if zeroed {
                        check(pointer.expose_provenance(), &Block { layout, mark: 0 });
                    }
                    (pointer, layout, 0)
                }
                Op::Realloc { which, size } => {
                    let Some(start) = nth(&live, which) else { continue };
                    let block = live.remove(&start).unwrap();
                    check(start, &block);
                    let old = std::ptr::with_exposed_provenance_mut(start);
                    // SAFETY: the block is live, with this layout.
                    let pointer = unsafe { HEAP.realloc(old, block.layout, size) };
                    let layout = Layout::from_size_align(size, block.layout.align()).unwrap();
                    let kept = size.min(block.layout.size());
                    let kept_layout = Layout::from_size_align(kept, 1).unwrap();
                    check(pointer.expose_provenance(), &Block { layout: kept_layout, ..block });
                    (pointer, layout, kept)
                }
                Op::Free { which } => {
                    let Some(start) = nth(&live, which) else { continue };
                    let block = live.remove(&start).unwrap();
                    check(start, &block);
                    // SAFETY: the block is live, with this layout.
                    unsafe {
                        HEAP.dealloc(std::ptr::with_exposed_provenance_mut(start), block.layout);
                    }
                    continue;
                }
            };
            prop_assert!(!pointer.is_null());
            prop_assert!(preserved <= layout.size());
            let start = pointer.expose_provenance();
            prop_assert_eq!(start % layout.align(), 0);
            let before = live.range(..=start).next_back();
            prop_assert!(before.is_none_or(|(at, block)| at + block.layout.size() <= start));
            let after = live.range(start..).next();
            prop_assert!(after.is_none_or(|(&at, _)| start + layout.size() <= at));
            // SAFETY: this test owns the block, which is this long.
            unsafe { pointer.write_bytes(mark, layout.size()) };
            live.insert(start, Block { layout, mark });
        }
        for (start, block) in live {
            check(start, &block);
            // SAFETY: the block is live, with this layout.
            unsafe { HEAP.dealloc(std::ptr::with_exposed_provenance_mut(start), block.layout) };
        }
    }
}

#[test]
fn freed_blocks_are_reused() {
    static SMALL: Arena<{ 1 << 20 }> = Arena::new();
    let layout = Layout::from_size_align(100_000, 8).unwrap();
    for _ in 0..1000 {
        // SAFETY: allocated and freed with the same layout.
        unsafe {
            let block = SMALL.alloc(layout);
            assert!(!block.is_null());
            SMALL.dealloc(block, layout);
        }
    }
    assert!(SMALL.used() < 200_000);
}

#[test]
fn exhaustion_returns_null() {
    static SMALL: Arena<{ 1 << 16 }> = Arena::new();
    for (size, align) in [(1 << 17, 1), (isize::MAX as usize - 64, 8), (16, 1 << 13)] {
        let layout = Layout::from_size_align(size, align).unwrap();
        // SAFETY: the calls only return null pointers.
        unsafe {
            assert!(SMALL.alloc(layout).is_null());
            assert!(SMALL.alloc_zeroed(layout).is_null());
        }
    }
    let layout = Layout::from_size_align(64, 64).unwrap();
    // SAFETY: the blocks are only counted.
    let blocks = (0..2000)
        .take_while(|_| unsafe { !SMALL.alloc(layout).is_null() })
        .count();
    assert_eq!(blocks, (1 << 16) / 64);
    // SAFETY: a block that cannot grow, because the arena is full, is unchanged.
    unsafe {
        static OTHER: Arena<4096> = Arena::new();
        let block = OTHER.alloc(layout);
        block.write_bytes(7, 64);
        assert!(OTHER.realloc(block, layout, 1 << 20).is_null());
        assert_eq!(block.read(), 7);
    }
}

#[test]
fn many_threads_share_the_heap() {
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            scope.spawn(move || {
                let mut kept: Vec<Vec<u8>> = Vec::new();
                for n in 0..5000_usize {
                    let size = (n * 7919 + thread * 104_729) % 3000;
                    kept.push(vec![thread as u8; size]);
                    if kept.len() > 100 {
                        let old = kept.swap_remove(n % 100);
                        assert!(old.iter().all(|&byte| byte == thread as u8));
                    }
                }
            });
        }
    });
}
