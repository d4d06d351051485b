//! The monitor's side of a call page, for tests.

use abi::hypercall::{
    ANSWER_WORD, COUNT, DONE, HypercallKind, KIND, OP_WORDS, OPS, REQUEST, RESULT, STATUS_WORD,
};
use shmem::{Span, futex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that answers the calls of a page. Dropping the value stops the thread.
#[derive(Debug)]
pub struct FakeMonitor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeMonitor {
    /// Starts the thread. `serve` gets a call's kind and operations, and returns the status and the
    /// answers.
    #[must_use]
    pub fn start(
        page: Span,
        serve: impl FnMut(HypercallKind, &[[u64; 3]]) -> Vec<(i64, u64)> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || answer(page, &stopped, serve));
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for FakeMonitor {
    /// # Panics
    /// Panics if the thread has panicked.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        // A second panic would abort the tests without the first panic's message.
        if !std::thread::panicking() {
            ended.transpose().unwrap();
        }
    }
}

/// Answers calls until `stop`.
fn answer(
    page: Span,
    stop: &AtomicBool,
    mut serve: impl FnMut(HypercallKind, &[[u64; 3]]) -> Vec<(i64, u64)>,
) {
    let word = |offset| page.u32(offset).unwrap();
    let at = |op: usize, n: usize| page.u64(OPS + (op * OP_WORDS + n) * 8).unwrap();
    let mut answered = 0;
    while !stop.load(Ordering::Relaxed) {
        let number = word(REQUEST).load(Ordering::Acquire);
        if number == answered {
            futex::wait(word(REQUEST), number, Some(Duration::from_millis(10)));
            continue;
        }
        let kind = HypercallKind::from_wire(word(KIND).load(Ordering::Relaxed)).unwrap();
        let count = word(COUNT).load(Ordering::Relaxed) as usize;
        let words = |op| [0, 1, 2].map(|n| at(op, n).load(Ordering::Relaxed));
        let ops: Vec<_> = (0..count).map(words).collect();
        for (op, (status, value)) in serve(kind, &ops).into_iter().enumerate() {
            at(op, ANSWER_WORD).store(value, Ordering::Relaxed);
            at(op, STATUS_WORD).store(status as u64, Ordering::Relaxed);
        }
        answered = number;
        word(RESULT).store(0, Ordering::Relaxed);
        word(DONE).store(number, Ordering::Release);
        futex::wake(word(DONE), 1);
    }
}
