//! Helpers of the device tests.
#![allow(dead_code, unreachable_pub)]

use nic::dma::{DeviceDoorbell, RemoteNic, Wire};
use nic::{Buffers, Caps, Frame, Nic, Pool, TxReport};
use shmem::Area;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

pub fn pool(buffers: usize, bytes: usize) -> Pool {
    // Memory is allocated in whole pages, so the pool may have surplus buffers. They are taken and
    // never returned.
    let mut pool = Pool::new(Area::anonymous(buffers * bytes).unwrap(), bytes);
    while pool.available() > buffers {
        pool.take();
    }
    pool
}

/// Returns the bytes of a frame of length `len`, which `mark` distinguishes from others.
pub fn bytes(mark: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ mark)
        .collect()
}

pub fn contents(frames: &[Frame]) -> Vec<Vec<u8>> {
    frames.iter().map(|frame| frame.to_vec().unwrap()).collect()
}

/// Receives frames from a NIC and returns their contents. Their buffers return to `pool`.
pub fn received(nic: &mut RemoteNic, pool: &mut Pool) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    nic.rx(0, 64, pool, &mut frames);
    let found = contents(&frames);
    for frame in &mut frames {
        frame.recycle(pool);
    }
    found
}

/// A doorbell that counts how often it was rung.
#[derive(Debug, Default)]
pub struct CountingBell(pub Cell<u32>);

impl DeviceDoorbell for CountingBell {
    fn ring(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// A device whose received frames come from the test, and whose sent frames the test can read.
#[derive(Clone, Default)]
pub struct TestNic {
    pub arriving: Rc<RefCell<VecDeque<Vec<u8>>>>,
    pub sent: Rc<RefCell<Vec<Vec<u8>>>>,
    pub due_ns: Option<u64>,
}

impl TestNic {
    pub fn with(frames: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let inner = Self::default();
        inner.arriving.borrow_mut().extend(frames);
        inner
    }
}

impl Nic for TestNic {
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
        vec![("inner", 1)]
    }
}

pub fn counter(nic: &impl Nic, name: &str) -> u64 {
    nic.counters()
        .into_iter()
        .find(|(found, _)| *found == name)
        .unwrap()
        .1
}

/// A wire whose arriving frames the test supplies, and whose sent frames the test can read.
#[derive(Clone, Debug, Default)]
pub struct TestWire {
    pub arriving: Rc<RefCell<VecDeque<Vec<u8>>>>,
    pub sent: Rc<RefCell<Vec<Vec<u8>>>>,
    pub is_full: Rc<Cell<bool>>,
}

impl Wire for TestWire {
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
