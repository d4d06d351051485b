//! A heap in a static array, for domains, which may not request memory from the kernel.
//!
//! Blocks have size classes, four for each doubling. A freed block is added to the list of its
//! class and reused only for that class; blocks are not merged. New blocks are taken from the
//! unused part of the array, which occupies no resident memory until it is accessed.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};

/// Size of the smallest block, and the minimum alignment of every block.
const SIZE_MIN: usize = 16;
/// The largest supported alignment.
const ALIGN_MAX: usize = abi::PAGE;
/// Size of the largest block.
const SIZE_MAX: usize = 1 << 40;
/// Size classes: four for each doubling from [`SIZE_MIN`] to [`SIZE_MAX`].
const CLASSES: usize = (SIZE_MAX.ilog2() - SIZE_MIN.ilog2()) as usize * 4 + 1;

/// An allocator for `#[global_allocator]` over `BYTES` bytes of .bss. It returns null when it is
/// out of memory.
///
/// It spins on its lock, since it is intended for programs with one thread; it is also sound with
/// several threads.
pub struct Arena<const BYTES: usize> {
    locked: AtomicBool,
    state: UnsafeCell<State>,
    memory: UnsafeCell<Memory<BYTES>>,
}

#[repr(C, align(4096))]
struct Memory<const BYTES: usize>(MaybeUninit<[u8; BYTES]>);

struct State {
    /// The number of bytes of the array that were ever allocated.
    used: usize,
    /// Freed blocks of each class; a block's first word points to the next.
    free: [*mut FreeBlock; CLASSES],
}

struct FreeBlock {
    next: *mut FreeBlock,
}

// SAFETY: `state` and `memory` are only accessed under the lock, or (`memory`) through blocks that
// have one owner each.
unsafe impl<const BYTES: usize> Sync for Arena<BYTES> {}

impl<const BYTES: usize> Arena<BYTES> {
    /// Creates an empty heap, for a `static`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            locked: AtomicBool::new(false),
            state: UnsafeCell::new(State {
                used: 0,
                free: [null_mut(); CLASSES],
            }),
            memory: UnsafeCell::new(Memory(MaybeUninit::uninit())),
        }
    }

    /// Returns the number of bytes that were ever allocated, which is the size of the heap.
    #[must_use]
    pub fn used(&self) -> usize {
        self.with(|state| state.used)
    }

    /// Runs `f` under the lock.
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        while self.locked.swap(true, Ordering::Acquire) {
            while self.locked.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
        }
        // SAFETY: this thread holds the lock, and `f`, which is one of the closures of this file,
        // does not call this function again.
        let result = f(unsafe { &mut *self.state.get() });
        self.locked.store(false, Ordering::Release);
        result
    }

    /// Allocates a block of `class`. Returns it, and whether it was never used, so that its bytes
    /// are zero.
    fn take(&self, class: usize) -> (*mut u8, bool) {
        let size = class_size(class);
        self.with(|state| {
            let block = state.free[class];
            if !block.is_null() {
                // SAFETY: a block in the list is free and belongs to this arena, and its first word
                // was written when it was freed.
                state.free[class] = unsafe { (*block).next };
                return (block.cast(), false);
            }
            let start = state.used.next_multiple_of(class_align(size));
            match start.checked_add(size) {
                Some(end) if end <= BYTES => {
                    state.used = end;
                    // SAFETY: `start..end` lies within the array.
                    (unsafe { self.memory.get().cast::<u8>().add(start) }, true)
                }
                _ => (null_mut(), false),
            }
        })
    }
}

impl<const BYTES: usize> Default for Arena<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the class of a request, or `None` if no block can satisfy it.
fn class_of(layout: Layout) -> Option<usize> {
    let (mut size, align) = (layout.size().max(SIZE_MIN), layout.align());
    if align > ALIGN_MAX || size > SIZE_MAX {
        return None;
    }
    if align > SIZE_MIN {
        // Blocks whose size is a power of two are aligned to their size, up to a page.
        size = size.max(align).next_power_of_two();
    }
    Some(class_of_size(size))
}

/// Returns the smallest class whose blocks have at least `size` bytes ([`SIZE_MIN`] …
/// [`SIZE_MAX`]).
fn class_of_size(size: usize) -> usize {
    // Between 2^k and 2^(k+1) the classes are 2^k × 1, 5/4, 6/4 and 7/4.
    let below = size - 1;
    let k = (usize::BITS - 1 - below.leading_zeros()) as usize;
    let quarter = below >> (k - 2) & 3;
    let class = (k * 4 + quarter + 1).saturating_sub(SIZE_MIN.ilog2() as usize * 4);
    // Some sizes below 64 bytes are not multiples of 16.
    if class_size(class).is_multiple_of(SIZE_MIN) {
        class
    } else {
        class.next_multiple_of(4)
    }
}

/// Returns the size of a block of `class`, in bytes.
fn class_size(class: usize) -> usize {
    (4 + class % 4) << (class / 4 + 2)
}

/// Returns the alignment of blocks of this size.
fn class_align(size: usize) -> usize {
    if size.is_power_of_two() {
        size.min(ALIGN_MAX)
    } else {
        SIZE_MIN
    }
}

// SAFETY: every block is at least as long and as aligned as requested (see `class_of`), lies in the
// static array, and has one owner until it is freed: under the lock, `take` removes it from a free
// list or from the unused part. Nothing here panics or allocates.
unsafe impl<const BYTES: usize> GlobalAlloc for Arena<BYTES> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        class_of(layout).map_or(null_mut(), |class| self.take(class).0)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout) else {
            return;
        };
        self.with(|state| {
            let block = block.cast::<FreeBlock>();
            // SAFETY: the block is from `alloc` with the same layout, is no longer in use, and is
            // large enough and aligned for a pointer.
            unsafe {
                block.write(FreeBlock {
                    next: state.free[class],
                })
            };
            state.free[class] = block;
        });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else {
            return null_mut();
        };
        let (block, fresh) = self.take(class);
        if !fresh && !block.is_null() {
            // SAFETY: this function owns the block, which is at least this long.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises a valid new size for this alignment.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if class_of(new_layout).is_some_and(|class| class_of(layout) == Some(class)) {
            return block;
        }
        // SAFETY: as for `alloc`. The blocks are distinct and have at least the copied length; the
        // old one is freed with its own layout.
        unsafe {
            let new = self.alloc(new_layout);
            if !new.is_null() {
                new.copy_from_nonoverlapping(block, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}
