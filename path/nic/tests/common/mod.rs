//! Common parts of the device tests.
#![allow(dead_code, unreachable_pub)]

use nic::dma::{Bell, RemoteNic, Wire};
use nic::{Buffers, Caps, Frame, Nic, Pool, TxReport};
use shmem::Area;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

pub fn pool(buffers: usize, bytes: usize) -> Pool {
    // Memory is allocated in whole pages, so surplus buffers are taken and kept.
    let mut pool = Pool::new(Area::anonymous(buffers * bytes).unwrap(), bytes);
    while pool.available() > buffers {
        pool.take();
    }
    pool
}

/// Returns a frame of `len` bytes, identifiable by `mark`.
pub fn bytes(mark: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ mark)
        .collect()
}

pub fn contents(frames: &[Frame]) -> Vec<Vec<u8>> {
    frames.iter().map(|frame| frame.to_vec().unwrap()).collect()
}

/// Returns the frames that a NIC has received. Their buffers return to `pool`.
pub fn received(nic: &mut RemoteNic, pool: &mut Pool) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    nic.rx(0, 64, pool, &mut frames);
    let found = contents(&frames);
    for frame in &mut frames {
        frame.recycle(pool);
    }
    found
}

/// A bell that counts how often it was rung.
#[derive(Debug, Default)]
pub struct CountingBell(pub Cell<u32>);

impl Bell for CountingBell {
    fn ring(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// A device that receives frames from the test and hands sent ones to it.
#[derive(Clone, Default)]
pub struct Bench {
    pub arriving: Rc<RefCell<VecDeque<Vec<u8>>>>,
    pub sent: Rc<RefCell<Vec<Vec<u8>>>>,
    pub due_ns: Option<u64>,
}

impl Bench {
    pub fn with(frames: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let bench = Self::default();
        bench.arriving.borrow_mut().extend(frames);
        bench
    }
}

impl Nic for Bench {
    fn caps(&self) -> Caps {
        Caps {
            checksum: false,
            tso: false,
            max_frame: 1514,
        }
    }

    fn rx(
        &mut self,
        _now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let mut arriving = self.arriving.borrow_mut();
        let count = budget.min(arriving.len());
        out.extend(
            arriving
                .drain(..count)
                .map(|b| Frame::from_bytes(&b, buffers).unwrap()),
        );
        count
    }

    fn tx(&mut self, _now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let mut report = TxReport::default();
        for &index in pick {
            let frame = &frames[index as usize];
            if !self.caps().takes(frame) {
                report.refused += 1;
                continue;
            }
            self.sent.borrow_mut().push(frame.to_vec().unwrap());
            report.sent += 1;
            report.bytes += frame.len() as u64;
        }
        report
    }

    fn next_due(&self, _now_ns: u64) -> Option<u64> {
        self.due_ns
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("bench", 1)]
    }
}

pub fn counter(nic: &impl Nic, name: &str) -> u64 {
    nic.counters()
        .into_iter()
        .find(|(found, _)| *found == name)
        .unwrap()
        .1
}

/// A wire whose arriving frames the test supplies, and which hands sent ones to it.
#[derive(Clone, Debug, Default)]
pub struct Cord {
    pub arriving: Rc<RefCell<VecDeque<Vec<u8>>>>,
    pub sent: Rc<RefCell<Vec<Vec<u8>>>>,
    pub is_full: Rc<Cell<bool>>,
}

impl Wire for Cord {
    fn has_room(&self, _len: usize) -> bool {
        !self.is_full.get()
    }

    fn send(&mut self, _now_ns: u64, bytes: Vec<u8>) {
        self.sent.borrow_mut().push(bytes);
    }

    fn receive(&mut self, _now_ns: u64) -> Option<Vec<u8>> {
        self.arriving.borrow_mut().pop_front()
    }

    fn due_ns(&self, n: usize) -> Option<u64> {
        (n < self.arriving.borrow().len()).then_some(0)
    }
}
