//! A hostile device domain that writes the driver's rings.

use super::common::{BUFFER, MTU, Silent, Supply, WIRE_MAX, check, offload, scribble};
use crate::input::Input;
use nic::dma::layout::{Completion, DeviceMemory, MERGED_MAX, MappedMemory, Merged, queue_bytes};
use nic::dma::queue::DeviceQueue;
use nic::dma::{IoAddr, IoTable, ReceivedBuffer, RemoteNic, RemoteQueue, RemoteSetup};
use nic::{Buffer, BufferId, Frame, Gso, GsoKind, Nic as _, Piece, SmallBatch, SmallFrame};
use shmem::{Area, Span};
use std::collections::BTreeSet;
use std::rc::Rc;

const ENTRIES: u32 = 64;
/// Buffers of the driver, and of the guest.
const BUFFERS: usize = 96;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Maximum number of buffers of a frame. In a guest's queue, the first buffer need not be full.
const PIECES_MAX: usize = MERGED_MAX / BUFFER + 2;
/// Number of queues. In the order of their memory, these are the shared receive queue, the transmit
/// queue and the guest's queue.
const QUEUES: usize = 3;
const DEDICATED: usize = 2;

struct Rig {
    setup: RemoteSetup,
    nic: RemoteNic,
    queue: RemoteQueue,
    supply: Supply,
    /// The memory of the queues, as the device accesses it.
    table: IoTable,
    memory: Area,
    /// Offset of the guest's queue.
    dedicated_at: usize,
    guest: Area,
    /// Buffers of the guest that are neither posted nor in a frame.
    free: BTreeSet<u32>,
    devices: [DeviceQueue; QUEUES],
    frames: Vec<Frame>,
    of_guest: Vec<Frame>,
}

/// Runs the driver of a device in another domain. Checks that no buffer is lost or in two places,
/// and that each frame has a bounded number of buffers.
pub(super) fn remote(input: &mut Input<'_>) {
    let mut rig = Rig::new(setup_of(input.bool(), input.bool()));
    while !input.is_empty() {
        match input.below(12) {
            0..3 => rig.complete(input),
            3 => rig.poll(input),
            4 => rig.receive(input),
            5 => rig.post(input),
            6 => rig.send(input),
            7 => rig.control(input),
            8 => rig.recycle(),
            9 => scribble(input, rig.memory.span()),
            10 if input.below(8) == 0 => rig.reconnect(),
            _ => rig.raise(input),
        }
        rig.check();
    }
    rig.reconnect();
    rig.recycle();
    rig.check();
    assert!(rig.supply.used.is_empty(), "a buffer is lost");
    assert_eq!(rig.free.len(), BUFFERS, "a guest's buffer is lost");
}

impl Rig {
    fn new(setup: RemoteSetup) -> Self {
        thread_local!(static MEMORY: [Area; 3] = [
            Area::anonymous(setup_of(true, true).bytes()),
            Area::anonymous(BUFFERS * BUFFER),
            Area::anonymous(BUFFERS * BUFFER),
        ].map(|area| area.expect("memory")));
        let [memory, pool, guest] = MEMORY.with(|areas| *areas);
        memory.span().fill(0).expect("own memory");
        let mut table = IoTable::default();
        let own = table.add(memory);
        table.map(own, memory.len()).expect("own memory");
        let mut nic = RemoteNic::new(setup, memory, pool).expect("the sizes fit");
        let queue = nic.dedicated(1).expect("there is one");
        let places = nic.lay_out().expect("the sizes fit");
        nic.connect(Rc::new(Silent));
        let mut rig = Self {
            setup,
            queue,
            supply: Supply::new(pool),
            table,
            memory,
            dedicated_at: places.dedicated.bits() as usize,
            guest,
            free: (0..BUFFERS as u32).collect(),
            devices: [DeviceQueue::new(ENTRIES, 0); QUEUES],
            frames: Vec::new(),
            of_guest: Vec::new(),
            nic,
        };
        rig.queue.sync_link(|_| ());
        rig
    }

    fn words(&self, queue: usize) -> Span {
        let bytes = queue_bytes(ENTRIES);
        let at = match queue {
            DEDICATED => self.dedicated_at,
            queue => queue * bytes,
        };
        self.memory.at(at, bytes).expect("a queue")
    }

    fn mapped(&self, queue: usize) -> MappedMemory<'_, IoTable> {
        let at = self.words(queue).addr() - self.memory.span().addr();
        MappedMemory {
            io: &self.table,
            base: IoAddr::from_bits(at as u64),
            entries: ENTRIES,
        }
    }

    /// Completes the next descriptors, or an arbitrary one.
    fn complete(&mut self, input: &mut Input<'_>) {
        let number = input.below(QUEUES);
        for _ in 0..=input.below(40) {
            let completion = completion(input, self.setup.splits);
            let Some(mut queue) = self.devices.get(number).copied() else {
                return;
            };
            let memory = self.mapped(number);
            if input.below(16) == 0 {
                let slot = input.below(ENTRIES as usize) as u32;
                let forged = memory.set_completion(slot, completion.encode());
                forged.expect("own memory");
            } else if queue.peek(&memory).expect("own memory").is_some() {
                queue.complete(&memory, completion).expect("own memory");
                queue.publish(&memory).expect("own memory");
                queue.raise(&memory).expect("own memory");
            }
            if let Some(of) = self.devices.get_mut(number) {
                *of = queue;
            }
        }
    }

    fn raise(&mut self, input: &mut Input<'_>) {
        let number = input.below(QUEUES);
        let memory = self.mapped(number);
        if let Some(mut queue) = self.devices.get(number).copied() {
            queue.raise(&memory).expect("own memory");
        }
    }

    fn poll(&mut self, input: &mut Input<'_>) {
        let before = self.frames.len();
        let budget = input.below(70);
        let Self {
            nic,
            supply,
            frames,
            ..
        } = self;
        let taken = nic.rx(0, budget, supply, frames);
        assert!(taken <= budget);
        let longest = if self.setup.merges {
            MERGED_MAX
        } else {
            WIRE_MAX
        };
        let new = self.frames.get(before..).unwrap_or(&[]);
        check(new, longest);
        assert!(new.iter().all(|frame| frame.pieces.len() <= PIECES_MAX));
    }

    fn receive(&mut self, input: &mut Input<'_>) {
        let before = self.of_guest.len();
        let mut failed = Vec::new();
        let budget = input.below(70);
        if budget % 2 == 1 {
            self.receive_small(budget);
        }
        let taken = self.queue.receive(budget, &mut self.of_guest, &mut failed);
        assert!(taken <= budget);
        let free = &mut self.free;
        failed
            .into_iter()
            .for_each(|id| assert!(free.insert(id.0), "returned twice"));
        let new = self.of_guest.get(before..).unwrap_or(&[]);
        let longest = if self.setup.merges {
            MERGED_MAX
        } else {
            BUFFER
        };
        check(new, longest);
        assert!(new.iter().all(|frame| frame.pieces.len() <= PIECES_MAX));
    }

    /// Receives the small frames at the head of the guest's queue.
    fn receive_small(&mut self, budget: usize) {
        let (mut frames, mut buffers) = (SmallBatch::default(), Vec::new());
        let is_short = |frame: &SmallFrame| frame.len() < BUFFER;
        self.queue
            .receive_small(budget, is_short, &mut frames, &mut buffers);
        assert!(frames.len() == buffers.len() && frames.len() <= budget);
        assert!(frames.iter().all(is_short));
        for (frame, ReceivedBuffer { id, .. }) in frames.iter().zip(buffers) {
            let span = self.guest.at(id.0 as usize * BUFFER, frame.len());
            let piece = Piece {
                span: span.expect("a buffer"),
                buffer: id,
            };
            let frame = Frame::new(piece, frame.len()).expect("own memory");
            self.of_guest.push(frame);
        }
    }

    /// Posts buffers of the guest.
    fn post(&mut self, input: &mut Input<'_>) {
        for _ in 0..=input.below(ENTRIES as usize) {
            let Some(number) = self.free.pop_first() else {
                break;
            };
            let at = number as usize * BUFFER;
            let buffer = Buffer {
                id: BufferId(number),
                span: self.guest.at(at, BUFFER).expect("a buffer"),
            };
            let address = IoAddr::from_bits(1 << 40 | at as u64);
            if !self.queue.post(address, buffer) {
                self.free.insert(number);
                break;
            }
        }
        self.queue.publish();
    }

    fn send(&mut self, input: &mut Input<'_>) {
        let offload = offload(input);
        let count = input.below(8);
        for frame in &mut self.frames {
            if frame.offload.gso.is_none() {
                frame.offload = offload;
            }
        }
        let pick: Vec<u32> = (0..count as u32).collect();
        let report = self.nic.tx(0, &self.frames, &pick);
        let known = pick.len().min(self.frames.len());
        let all = report.sent + report.full + report.refused + report.fault;
        assert!(all as usize == known || report.refused as usize == pick.len());
    }

    /// Starts or stops the guest's queue, or writes the device's answer to such a request.
    fn control(&mut self, input: &mut Input<'_>) {
        match input.below(4) {
            0 => self.queue.start(MAC, input.bool()),
            1 if input.below(4) == 0 => {
                self.queue.stop();
                self.return_stopped();
            }
            2 => self
                .words(DEDICATED)
                .store_u64(320, input.u64())
                .expect("own memory"),
            _ => {
                let memory = self.mapped(DEDICATED);
                let control = memory.control().expect("own memory");
                let queue = DeviceQueue::new(ENTRIES, 0);
                queue.publish_reset(&memory).expect("own memory");
                memory.set_effective(control).expect("own memory");
                if let Some(of) = self.devices.get_mut(DEDICATED) {
                    *of = queue;
                }
            }
        }
    }

    /// Takes back the buffers that a stopped queue no longer tracks, which are all buffers that are
    /// not in a frame.
    fn return_stopped(&mut self) {
        let pieces = self.of_guest.iter().flat_map(|frame| &frame.pieces);
        let held: BTreeSet<u32> = pieces.map(|piece| piece.buffer.0).collect();
        let all = 0..BUFFERS as u32;
        self.free = all.filter(|id| !held.contains(id)).collect();
    }

    fn recycle(&mut self) {
        let supply = &mut self.supply;
        self.frames
            .drain(..)
            .for_each(|mut frame| frame.recycle(supply));
        for frame in self.of_guest.drain(..) {
            for piece in &frame.pieces {
                assert!(self.free.insert(piece.buffer.0), "in two frames");
            }
        }
    }

    /// Replaces the device, as after its death.
    fn reconnect(&mut self) {
        self.nic.disconnect(&mut self.supply);
        let free = &mut self.free;
        self.queue
            .sync_link(|id| assert!(free.insert(id.0), "returned twice"));
        assert!(self.nic.lay_out().is_some());
        self.nic.connect(Rc::new(Silent));
        self.devices = [DeviceQueue::new(ENTRIES, 0); QUEUES];
    }

    /// Checks that each buffer is in one place.
    fn check(&self) {
        let counters = self.nic.counters();
        let posted = counters.iter().find(|(name, _)| *name == "rx_posted");
        let posted = posted.map_or(0, |(_, count)| *count as usize);
        let pieces = |frames: &[Frame]| frames.iter().map(|frame| frame.pieces.len()).sum();
        let held: usize = pieces(&self.frames);
        assert_eq!(self.supply.used.len(), posted + held);
        let of_guest: usize = pieces(&self.of_guest);
        let known = self.free.len() + self.queue.outstanding() + of_guest;
        assert_eq!(known, BUFFERS);
    }
}

const fn setup_of(merges: bool, splits: bool) -> RemoteSetup {
    RemoteSetup {
        entries: ENTRIES,
        mtu: MTU,
        queues: 1,
        merges,
        splits,
    }
}

/// Returns a completion as a device reports it, which is mostly valid.
fn completion(input: &mut Input<'_>, splits: bool) -> Completion {
    let flags = input.u8();
    let more = flags & 3 == 0;
    let len = match flags >> 2 & 7 {
        0 => input.near(BUFFER as u32),
        1 => u32::from(input.u16()),
        2 => 0,
        _ if more => BUFFER as u32,
        _ => u32::from(input.u8()) * 8,
    };
    let merged = (flags & 32 != 0).then(|| Merged {
        gso: Gso {
            kind: if input.bool() {
                GsoKind::Tcp4
            } else {
                GsoKind::Tcp6
            },
            size: match input.below(3) {
                0 => input.u16(),
                _ => 1000,
            },
        },
        tcp: match input.below(4) {
            0 => input.u8(),
            1 => 54,
            _ => 34,
        },
        fixed_id: flags & 64 != 0,
    });
    Completion {
        len,
        more,
        merged,
        valid: flags & 128 != 0,
        error: input.below(16) == 0,
        header_len: match input.below(32) {
            0 => input.u16(),
            _ if splits => len.min(128) as u16,
            _ => 0,
        },
        ..Completion::default()
    }
}
