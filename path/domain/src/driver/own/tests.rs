//! A queue against a monitor of the test's own, under which frames are denied all the time.

use super::*;
use abi::hypercall::{
    ANSWER_WORD, COUNT, DONE, KIND, Kind, OP_WORDS, OPS, REQUEST, RESULT, STATUS_WORD,
};
use abi::xdp::RingLayout;
use rustix::io::Errno;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

const ENTRIES: u32 = 32;
const RULES: [u32; 3] = [0, 3, 700];
const BYTES: u64 = 60;

/// A guest's queue as the kernel and the monitor have it.
struct World {
    descriptor: i32,
    /// Frames that each rule has denied.
    denied: u64,
    stopped: bool,
    ended: bool,
}

impl World {
    fn serve(&mut self, kind: u32, words: [u64; 3]) -> Result<u64, Errno> {
        if !self.stopped {
            self.denied += 1;
        }
        if self.ended {
            return Err(Errno::NOENT);
        }
        if Kind::from_wire(kind) == Some(Kind::DeviceEnd) {
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
                // Those that were on their way.
                self.denied += 5;
                self.stopped = true;
                Ok(0)
            }
            XdpControl::DeniedFrames(rule) if RULES.contains(&rule) => Ok(self.denied),
            XdpControl::DeniedBytes(rule) if RULES.contains(&rule) => Ok(self.denied * BYTES),
            other => panic!("{other:?}"),
        }
    }

    /// Answers calls until the queue has ended.
    fn run(mut self, page: Span) -> Self {
        let word = |offset| page.u32(offset).unwrap();
        let mut answered = 0;
        while !self.ended {
            let number = word(REQUEST).load(Ordering::Acquire);
            if number == answered {
                let patience = Some(Duration::from_millis(10));
                shmem::futex::wait(word(REQUEST), number, patience);
                continue;
            }
            let kind = word(KIND).load(Ordering::Relaxed);
            for op in 0..word(COUNT).load(Ordering::Relaxed) as usize {
                let at = |n| page.u64(OPS + (op * OP_WORDS + n) * 8).unwrap();
                let words = [0, 1, 2].map(|n| at(n).load(Ordering::Relaxed));
                let told = self.serve(kind, words);
                at(ANSWER_WORD).store(told.unwrap_or(0), Ordering::Relaxed);
                let status = told
                    .err()
                    .map_or(0, |errno| -i64::from(errno.raw_os_error()));
                at(STATUS_WORD).store(status as u64, Ordering::Relaxed);
            }
            answered = number;
            word(RESULT).store(0, Ordering::Relaxed);
            word(DONE).store(number, Ordering::Release);
            shmem::futex::wake(word(DONE), 1);
        }
        self
    }
}

/// XDP-20: whatever comes in a queue's last moment, what rules have denied is counted to the last frame.
#[test]
fn what_is_denied_to_the_end_is_counted() {
    let page = Area::anonymous(2 * PAGE).unwrap().span();
    let window = Area::anonymous(2 * Ring::slots(ENTRIES) as usize * PAGE).unwrap();
    let fd: OwnedFd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    // A number that nobody else gets when it is free.
    let fd = rustix::io::fcntl_dupfd_cloexec(fd, 800).unwrap();
    let world = World {
        descriptor: fd.as_raw_fd(),
        denied: 0,
        stopped: false,
        ended: false,
    };
    let monitor = std::thread::spawn(move || world.run(page));
    let config = Config {
        nic: 0,
        device: 4,
        rings_slot: 0,
        entries: ENTRIES,
        chunk_bytes: 2048,
        first_frame: 0,
        frames: 16,
    };
    let calls = Rc::new(RefCell::new(Calls::over(page)));
    let mut queue = OwnQueue::new(config, fd, 1500, &Lro::default(), window, &calls).unwrap();
    RULES.iter().for_each(|rule| queue.count_denied(*rule));
    assert_eq!(queue.denied().len(), RULES.len());
    queue.end();
    let world = monitor.join().unwrap();
    let last = Count {
        frames: world.denied,
        bytes: world.denied * BYTES,
    };
    assert_eq!(queue.denied(), RULES.map(|rule| (rule, last)));
    assert_eq!(queue.trouble, "");
}
