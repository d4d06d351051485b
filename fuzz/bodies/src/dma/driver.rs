//! A hostile driver that writes the rings of a device in software.

use super::common::{MTU, WIRE_MAX, scribble};
use crate::input::Input;
use abi::PAGE;
use nic::dma::layout::{Descriptor, DriverMemory as _, OwnMemory, queue_bytes};
use nic::dma::soft::InterruptModeration;
use nic::dma::{IoAddr, IoTable, SoftDevice, Wire};
use shmem::{Area, Span};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

const ENTRIES: u32 = 16;
/// Number of queues: two receive queues and one transmit queue.
const QUEUES: usize = 3;
/// Number of pages: those that the device may access while they are mapped, and a guard page on
/// each side.
const PAGES: usize = 4;
/// Value of all bytes in the guard pages.
const GUARD: u8 = 0x5a;
/// Maximum total bytes of arrived frames.
const ARRIVED_MAX: usize = 1 << 20;

/// A wire whose frames the input supplies.
#[derive(Clone, Debug, Default)]
struct Line {
    arriving: Rc<RefCell<VecDeque<Vec<u8>>>>,
}

impl Wire for Line {
    fn has_room(&self, len: usize) -> bool {
        assert!(len <= WIRE_MAX);
        true
    }

    fn send(&mut self, _: u64, bytes: Vec<u8>) {
        assert!(bytes.len() <= WIRE_MAX);
    }

    fn receive(&mut self, _: u64) -> Option<Vec<u8>> {
        self.arriving.borrow_mut().pop_front()
    }

    fn due_ns(&self, n: usize) -> Option<u64> {
        (n < self.arriving.borrow().len()).then_some(0)
    }
}

/// Runs a device in software. Checks that it writes only to mapped pages and that every call
/// returns.
pub(super) fn soft(input: &mut Input<'_>) {
    thread_local!(static MEMORY: [Area; 2] = [
        Area::anonymous(QUEUES * queue_bytes(ENTRIES)),
        Area::anonymous((PAGES + 2) * PAGE),
    ].map(|area| area.expect("memory")));
    let [rings, pages] = MEMORY.with(|areas| *areas);
    rings.span().fill(0).expect("own memory");
    pages.span().fill(GUARD).expect("own memory");
    let mut table = IoTable::default();
    let base = table.add(rings);
    table.map(base, rings.len()).expect("own memory");
    let first = table.add(pages);
    let inside = first.add(PAGE).expect("an address");
    table.map(inside, PAGES * PAGE).expect("own memory");
    let line = Line::default();
    let at = |queue: usize| base.add(queue * queue_bytes(ENTRIES));
    let at = |queue| at(queue).expect("an address");
    let interrupts = InterruptModeration {
        delay_ns: 10,
        frames: 4,
    };
    let queues = [at(0), at(1)];
    let mut device = SoftDevice::new(line.clone(), ENTRIES, &queues, at(2), WIRE_MAX, interrupts);
    let memory = |queue: usize| rings.at(queue * queue_bytes(ENTRIES), queue_bytes(ENTRIES));
    let memories = [0, 1, 2].map(|queue| memory(queue).expect("a queue"));
    let (mut now_ns, mut arrived) = (0, 0);
    while !input.is_empty() {
        match input.below(6) {
            0 => post(input, memories, first),
            1 => {
                let len = usize::from(input.u16()) % (WIRE_MAX + 2);
                let mut frame = vec![now_ns as u8; len];
                let mac = [2, 0, 0, 0, 0, input.u8() & 1];
                frame.iter_mut().zip(mac).for_each(|(to, byte)| *to = byte);
                arrived += len;
                if arrived < ARRIVED_MAX {
                    line.arriving.borrow_mut().push_back(frame);
                }
            }
            2 => scribble(input, rings.span()),
            3 => {
                // Frames for one of the two MACs, or for none.
                let mac = input.u64() & 0xff01_0000_0000_0002 | 1 << 48;
                memories[1].store_u64(256, mac).expect("own memory");
            }
            4 => now_ns += u64::from(input.u8()),
            _ => {
                device.apply_controls(&table);
                device.poll(now_ns, &table);
                device.raise(now_ns, &table);
                device.arm(&table);
            }
        }
    }
    device.poll(now_ns, &table);
    for side in [0, PAGES + 1] {
        let mut bytes = [0; PAGE];
        let page = pages.at(side * PAGE, PAGE).expect("a page");
        page.read(&mut bytes).expect("own memory");
        assert!(bytes.iter().all(|byte| *byte == GUARD), "not mapped");
    }
}

/// Posts descriptors, and publishes an arbitrary number of them.
fn post(input: &mut Input<'_>, memories: [Span; QUEUES], first: IoAddr) {
    let Some(span) = memories.get(input.below(QUEUES)) else {
        return;
    };
    let old = span.load_u32(0).expect("own memory");
    // Opening the memory clears the index words.
    let kept = [64, 128, 192, 384].map(|at| (at, span.load_u32(at).expect("own memory")));
    let controls = [256, 320].map(|at| (at, span.load_u64(at).expect("own memory")));
    let memory = OwnMemory::new(*span, ENTRIES).expect("a queue");
    let restored = kept
        .iter()
        .try_for_each(|(at, word)| span.store_u32(*at, *word));
    restored.expect("own memory");
    let restored = controls
        .iter()
        .try_for_each(|(at, word)| span.store_u64(*at, *word));
    restored.expect("own memory");
    let count = input.below(ENTRIES as usize) as u32;
    for n in 0..count {
        let address = |input: &mut Input<'_>| match input.below(8) {
            0 => IoAddr::from_bits(input.u64()),
            _ => IoAddr::from_bits(first.bits() + u64::from(input.u16()) % (6 * PAGE as u64)),
        };
        let descriptor = Descriptor {
            address: address(input),
            len: match input.below(4) {
                0 => input.near(0),
                1 => u32::from(input.u8()),
                _ => MTU as u32 + 500,
            },
            header: (input.below(4) == 0).then(|| address(input)),
            checksum: (input.below(4) == 0).then(|| (input.u16() % 64, input.u16() % 32)),
        };
        let slot = old.wrapping_add(n) % ENTRIES;
        let written = memory.set_descriptor(slot, descriptor.encode());
        written.expect("own memory");
    }
    let next = match input.below(16) {
        0 => input.u32(),
        _ => old.wrapping_add(count),
    };
    memory.set_posted(next).expect("own memory");
}
