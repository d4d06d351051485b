//! Tests of a queue with a mock monitor. The mock kernel denies frames continuously.

use super::*;
use abi::hypercall::HypercallKind;
use abi::xdp::RingLayout;
use runtime::call::Calls;
use runtime::processes::Processes;
use runtime::testing::FakeMonitor;
use rustix::io::Errno;
use shmem::Area;
use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

const ENTRIES: u32 = 32;
const RULES: [u32; 3] = [0, 3, 700];
const BYTES: u64 = 60;

/// State of a guest's queue in the mock kernel and monitor.
struct MockKernel {
    descriptor: i32,
    /// Number of frames that each rule has denied.
    denied: u64,
    stopped: bool,
    ended: bool,
}

impl MockKernel {
    fn serve(&mut self, kind: HypercallKind, words: [u64; 3]) -> Result<u64, Errno> {
        if !self.stopped {
            self.denied += 1;
        }
        if self.ended {
            return Err(Errno::NOENT);
        }
        if kind == HypercallKind::DeviceEnd {
            if std::fs::symlink_metadata(format!("/proc/self/fd/{}", self.descriptor)).is_ok() {
                return Err(Errno::BUSY);
            }
            (self.stopped, self.ended) = (true, true);
            return Ok(0);
        }
        let [_, word, other] = words;
        match XdpControl::decode([word, other]).unwrap() {
            XdpControl::Layout(_) => Ok(RingLayout {
                producer: 0,
                consumer: 64,
                flags: 128,
                entries: 192,
            }
            .encode()),
            XdpControl::Stop => {
                // Frames in transit are still denied.
                self.denied += 5;
                self.stopped = true;
                Ok(0)
            }
            XdpControl::DeniedFrames(rule) if RULES.contains(&rule) => Ok(self.denied),
            XdpControl::DeniedBytes(rule) if RULES.contains(&rule) => Ok(self.denied * BYTES),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the status and the answer of each operation of a call.
    fn answers(&mut self, kind: HypercallKind, ops: &[[u64; 3]]) -> Vec<(i64, u64)> {
        let answer = |words: &[u64; 3]| match self.serve(kind, *words) {
            Ok(result) => (0, result),
            Err(errno) => (-i64::from(errno.raw_os_error()), 0),
        };
        ops.iter().map(answer).collect()
    }
}

/// XDP-20: the counts of rules include the last frame denied before a queue ends.
#[test]
fn counts_include_the_last_denied_frame() {
    let page = Area::anonymous(2 * PAGE).unwrap().span();
    let window = Area::anonymous(2 * Ring::slots(ENTRIES) as usize * PAGE).unwrap();
    let fd: OwnedFd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    // No other descriptor gets this number after the queue has closed it.
    let fd = rustix::io::fcntl_dupfd_cloexec(fd, 800).unwrap();
    let kernel = Arc::new(Mutex::new(MockKernel {
        descriptor: fd.as_raw_fd(),
        denied: 0,
        stopped: false,
        ended: false,
    }));
    let shared = Arc::clone(&kernel);
    let answering = FakeMonitor::start(page, move |kind, ops| {
        shared.lock().unwrap().answers(kind, ops)
    });
    let config = DedicatedQueueConfig {
        nic: 0,
        device: 4,
        rings_slot: 0,
        entries: ENTRIES,
        chunk_bytes: 2048,
        first_frame: 0,
        frames: 16,
    };
    let calls = Rc::new(RefCell::new(Calls::with_page(page)));
    let platform: Rc<dyn Platform> = Rc::new(Processes::new(calls, window));
    let mut queue = SocketQueue::new(config, fd, 1500, &platform).unwrap();
    RULES.iter().for_each(|rule| queue.count_denied(*rule));
    assert_eq!(queue.denied().len(), RULES.len());
    queue.end();
    drop(answering);
    let kernel = kernel.lock().unwrap();
    assert!(kernel.ended);
    let last = RuleCount {
        frames: kernel.denied,
        bytes: kernel.denied * BYTES,
    };
    assert_eq!(queue.denied(), RULES.map(|rule| (rule, last)));
    assert_eq!(queue.last_error, "");
}
