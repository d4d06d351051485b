//! A domain that executes any order, as attacker or well-behaved domain in the core's tests. Its
//! configuration is a JSON object (`silent`: it is never ready; `late`: it is ready before it
//! connects). It receives orders in its mailbox: see [`Probe::obey`].

use abi::classic::GrantEntry;
use abi::hypercall::{
    ANSWER_WORD, AttachTarget, COUNT, DONE, HypercallKind, KIND, OP_WORDS, OPS, OPS_MAX, REQUEST,
    RESULT, STATUS_WORD,
};
use abi::layout::{info, mailbox};
use abi::{ConnId, DomId, PAGE, Slot, XenbusState};
use rustix::event::epoll;
use serde_json::{Value, json};
use shmem::Span;
use shmem::domain_memory::{Descriptors, DomainMemory};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

mod foreign;

#[global_allocator]
static HEAP: shmem::arena::Arena<{ 8 << 20 }> = shmem::arena::Arena::new();

fn main() {
    shmem::install_fault_handler();
    let memory = match shmem::domain_memory::take() {
        Ok(memory) => memory,
        Err(error) => {
            print_line(format_args!("probe-domain: {error}"));
            std::process::exit(3);
        }
    };
    let fds = shmem::domain_memory::descriptors().expect("descriptors");
    let info = memory.info.span();
    let mut text = vec![0; memory.config_bytes];
    memory.config().read(&mut text).expect("a configuration");
    let config: Value = serde_json::from_slice(&text).unwrap_or_default();
    let mut probe = Probe {
        memory,
        fds,
        info,
        number: 0,
        attached: Vec::new(),
        spin: None,
    };
    print_line(format_args!("up as {:?}", std::env::args().next()));
    if let Some(word) = config["word"].as_str() {
        print_line(format_args!("configured with {word}"));
    }
    if config["silent"] == true {
        hang();
    }
    if config["late"] == true {
        probe.call(HypercallKind::Ready as u32, 0);
        probe.connect();
    } else {
        probe.connect();
        probe.call(HypercallKind::Ready as u32, 0);
    }
    probe.run();
}

/// Prints a line on the console. A full console drops the line and does not block.
fn print_line(line: std::fmt::Arguments<'_>) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

/// Sleeps forever, without a heartbeat.
fn hang() -> ! {
    let word = AtomicU32::new(0);
    loop {
        shmem::futex::wait(&word, 0, None);
    }
}

struct Probe {
    memory: DomainMemory,
    fds: Descriptors,
    info: Span,
    number: u32,
    attached: Vec<OwnedFd>,
    spin: Option<Spin>,
}

impl Probe {
    fn word(&self, offset: usize) -> &'static AtomicU32 {
        self.info.u32(offset).expect("a word of INFO")
    }

    fn put(&self, op: usize, word: usize, value: u64) {
        let at = info::CALL + OPS + (op * OP_WORDS + word) * 8;
        self.info
            .u64(at)
            .expect("a word of an operation")
            .store(value, Ordering::Relaxed);
    }

    fn get(&self, op: usize, word: usize) -> u64 {
        let at = info::CALL + OPS + (op * OP_WORDS + word) * 8;
        self.info
            .u64(at)
            .expect("a word of an operation")
            .load(Ordering::Relaxed)
    }

    fn call(&mut self, kind: u32, count: u32) -> i32 {
        self.word(info::CALL + KIND).store(kind, Ordering::Relaxed);
        self.word(info::CALL + COUNT)
            .store(count, Ordering::Relaxed);
        let (request, done) = (
            self.word(info::CALL + REQUEST),
            self.word(info::CALL + DONE),
        );
        self.number = self.number.wrapping_add(1);
        request.store(self.number, Ordering::Release);
        shmem::futex::wake(request, 1);
        loop {
            let current = done.load(Ordering::Acquire);
            if current == self.number {
                break;
            }
            shmem::futex::wait(done, current, None);
        }
        self.word(info::CALL + RESULT).load(Ordering::Relaxed) as i32
    }

    /// Repeats one hypercall without waiting for results.
    fn hammer(&mut self, kind: u32, ms: u64) {
        self.word(info::CALL + KIND).store(kind, Ordering::Relaxed);
        self.word(info::CALL + COUNT).store(0, Ordering::Relaxed);
        let request = self.word(info::CALL + REQUEST);
        let end = shmem::time::monotonic_ns() + ms * 1_000_000;
        while shmem::time::monotonic_ns() < end {
            self.number = self.number.wrapping_add(1);
            request.store(self.number, Ordering::Release);
            shmem::futex::wake(request, 1);
        }
        self.call(HypercallKind::Ready as u32, 0);
    }

    /// Sets all connections to connected, without a handshake.
    fn connect(&mut self) {
        for conn in 0.. {
            self.put(0, 0, conn);
            self.put(0, 1, XenbusState::Connected as u64);
            self.call(HypercallKind::ConnectSet as u32, 1);
            if self.get(0, STATUS_WORD) != 0 {
                break;
            }
        }
    }

    fn run(&mut self) -> ! {
        let beat = self.info.u64(info::HEARTBEAT).expect("a heartbeat");
        let (pending, armed) = (self.word(info::PENDING), self.word(info::ARMED));
        loop {
            beat.fetch_add(1, Ordering::Relaxed);
            if pending.swap(0, Ordering::AcqRel) & info::PENDING_MAILBOX != 0 {
                self.mailbox();
            }
            if let Some(spin) = &mut self.spin {
                spin.read();
                continue;
            }
            armed.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if pending.load(Ordering::Relaxed) == 0 {
                let mut events = [const { MaybeUninit::uninit() }; 4];
                let _ = epoll::wait(&self.fds.epoll, &mut events, None);
                let _ = rustix::io::read(&self.fds.event, &mut [0; 8]);
            }
            armed.store(0, Ordering::Relaxed);
        }
    }

    fn mailbox(&mut self) {
        let span = self.memory.mailbox.span();
        let word = |offset| span.u32(offset).expect("a word of the mailbox");
        let number = word(mailbox::REQUEST).load(Ordering::Acquire);
        if number == word(mailbox::REPLY).load(Ordering::Relaxed) {
            // The wake-up was for a request that was answered already.
            return;
        }
        let bytes = word(mailbox::REQUEST_BYTES).load(Ordering::Relaxed) as usize;
        let mut text = vec![0; bytes.min(mailbox::IN_MAX)];
        span.skip(mailbox::IN).read(&mut text).expect("a request");
        let order: Value = serde_json::from_slice(&text).unwrap_or_default();
        let reply = self.obey(&order).to_string();
        span.skip(mailbox::OUT)
            .write(reply.as_bytes())
            .expect("space for a reply");
        let length = order["claim"].as_u64().unwrap_or(reply.len() as u64);
        word(mailbox::REPLY_BYTES).store(length as u32, Ordering::Relaxed);
        word(mailbox::REPLY).store(number, Ordering::Release);
    }

    /// Executes an order: `{"do": …, …}`.
    fn obey(&mut self, order: &Value) -> Value {
        let n = |key: &str| order[key].as_u64().unwrap_or(0);
        let memory = self.memory;
        let frame = |key: &str| memory.frames.page(n(key) as u32).unwrap_or(Span::EMPTY);
        let foreign_page = |key: &str| memory.foreign.page(n(key) as u32).unwrap_or(Span::EMPTY);
        let slot = |key: &str| memory.window.page(n(key) as u32).unwrap_or(Span::EMPTY);
        match order["do"].as_str().unwrap_or_default() {
            "id" => json!(self.memory.domain),
            // Fills or reads a frame of this domain.
            "fill" => outcome(frame("frame").fill(n("byte") as u8)),
            "read" => first_byte(frame("frame")),
            // Writes a grant entry: a slot that accepts a page, or a frame to which another domain
            // has access.
            "grant" => {
                let to = DomId(n("to") as u16);
                let frame = n("frame") as u32;
                let entry = match order["accept"] == true {
                    true => GrantEntry::transfer(to, Slot(frame)),
                    false => GrantEntry::access(to, frame, order["readonly"] == true),
                };
                self.entry(n("index"), if order["end"] == true { 0 } else { entry.0 })
            }
            // Reads or fills a page through the window.
            "read-slot" => first_byte(slot("slot")),
            "fill-slot" => outcome(slot("slot").fill(n("byte") as u8)),
            // Writes a word through the window.
            "poke" => {
                let word = n("value") as u32;
                outcome(slot("slot").store_u32(n("offset") as usize, word))
            }
            // Starts to read a slot continuously.
            "spin-slot" => {
                self.spin = Some(Spin::new(slot("slot")));
                json!("done")
            }
            // Returns the results of the continuous reads so far.
            "spun" => self.spin.as_ref().map_or(Value::Null, Spin::report),
            // Executes any hypercall: a kind, operations of up to six words, and optionally a
            // different count.
            "call" => self.obey_call(order),
            // Repeats a sequence of hypercalls, and returns their duration.
            "time" => self.obey_time(order),
            // Executes many hypercalls of all kinds.
            "storm" => {
                for kind in 0..n("calls") {
                    self.call(kind as u32 % 15, u32::MAX >> (kind % 32));
                }
                json!("done")
            }
            // Repeats one hypercall continuously for some milliseconds.
            "hammer" => {
                self.hammer(n("kind") as u32, n("ms"));
                json!("done")
            }
            "attach" => self.obey_attach(&order["kind"], n("index") as u32),
            // Accepts a connection on the attached socket, and receives descriptors.
            "accept" => self.obey_accept(),
            // Reads or fills a page of foreign memory.
            "read-foreign" => first_byte(foreign_page("page")),
            "fill-foreign" => outcome(foreign_page("page").fill(n("byte") as u8)),
            // Overwrites INFO with one byte, from the shared words on.
            "scribble" => {
                let last = self.info.skip(PAGE);
                outcome(last.fill(n("byte") as u8))
            }
            "flood" => flood(n("lines")),
            "print" => {
                print_line(format_args!(
                    "{}",
                    order["text"].as_str().unwrap_or_default()
                ));
                json!("done")
            }
            "hang" => hang(),
            "exit" => std::process::exit(n("code") as i32),
            other => json!(format!("no such order: {other}")),
        }
    }

    /// Attaches a device (kind 1) or a doorbell (any other kind).
    fn obey_attach(&mut self, kind: &Value, index: u32) -> Value {
        let what = match kind.as_u64() {
            Some(1) => AttachTarget::Device(index),
            _ => AttachTarget::Doorbell(ConnId(index)),
        };
        match shmem::attach::request_descriptor(what) {
            Ok(fd) => {
                self.attached.push(fd);
                json!("attached")
            }
            Err(error) => json!(error.raw_os_error()),
        }
    }

    fn obey_accept(&mut self) -> Value {
        match foreign::accept(self.attached.last()) {
            Ok(received) => {
                let numbers: Vec<_> = received.iter().map(AsRawFd::as_raw_fd).collect();
                self.attached.extend(received);
                json!(numbers)
            }
            Err(errno) => json!(errno.raw_os_error()),
        }
    }

    /// Executes the hypercall of an order. Returns the result and the words of all operations.
    fn obey_call(&mut self, order: &Value) -> Value {
        let ops = order["ops"].as_array().cloned().unwrap_or_default();
        for (op, words) in ops.iter().enumerate().take(OPS_MAX) {
            for (word, value) in words.as_array().into_iter().flatten().enumerate() {
                self.put(op, word, value.as_u64().unwrap_or(0));
            }
        }
        let count = order["count"].as_u64().unwrap_or(ops.len() as u64);
        let result = self.call(order["kind"].as_u64().unwrap_or(0) as u32, count as u32);
        let words = |op| -> Vec<i64> {
            (0..OP_WORDS)
                .map(|word| self.get(op, word) as i64)
                .collect()
        };
        let answers: Vec<_> = (0..ops.len().min(OPS_MAX)).map(words).collect();
        json!({ "result": result, "ops": answers })
    }

    /// Repeats the hypercalls of an order in sequence. Returns the nanoseconds per repetition.
    fn obey_time(&mut self, order: &Value) -> Value {
        let turns = order["calls"].as_u64().unwrap_or(0);
        let start = shmem::time::monotonic_ns();
        let mut answers = [0; OPS_MAX];
        for _ in 0..turns {
            for call in order["each"].as_array().into_iter().flatten() {
                let ops = call["ops"].as_u64().unwrap_or(1);
                for (op, answer) in answers.iter().enumerate().take(ops as usize) {
                    for (word, value) in call["words"].as_array().into_iter().flatten().enumerate()
                    {
                        let step = call["step"][word].as_u64().unwrap_or(0);
                        let value = value.as_u64().unwrap_or(0) + step * op as u64;
                        // With `answers`, word 0 contains the result of the previous call.
                        let from = call["answers"] == true && word == 0;
                        self.put(op, word, value | if from { *answer } else { 0 });
                    }
                }
                let kind = call["kind"].as_u64().unwrap_or(0);
                self.call(kind as u32, ops as u32);
                for (op, answer) in answers.iter_mut().enumerate().take(ops as usize) {
                    *answer = self.get(op, ANSWER_WORD);
                }
                if self.get(0, STATUS_WORD) != 0 {
                    return json!("refused");
                }
            }
        }
        json!((shmem::time::monotonic_ns() - start) / turns.max(1))
    }

    fn entry(&self, index: u64, value: u64) -> Value {
        let at = info::GRANT_TABLE + index as usize * 8;
        let Some(entry) = self.info.u64(at) else {
            return json!("no such entry");
        };
        json!(GrantEntry(entry.swap(value, Ordering::AcqRel)).in_use())
    }
}

fn outcome<E>(result: Result<(), E>) -> Value {
    json!(if result.is_ok() { "done" } else { "fault" })
}

/// Prints `lines` lines of 100 bytes.
fn flood(lines: u64) -> Value {
    let line = "x".repeat(99);
    for _ in 0..lines {
        print_line(format_args!("{line}"));
    }
    json!("done")
}

/// Continuous reads of a page's first byte, between orders.
struct Spin {
    at: Span,
    /// The values read, in order, without consecutive repetitions.
    values: Vec<u8>,
    reads: u64,
    /// Number of faults.
    faults: u64,
}

impl Spin {
    fn new(at: Span) -> Self {
        Self {
            at,
            values: Vec::new(),
            reads: 0,
            faults: 0,
        }
    }

    fn read(&mut self) {
        for _ in 0..1000 {
            let mut byte = [0];
            match self.at.read(&mut byte) {
                Ok(()) => {
                    self.reads += 1;
                    if self.values.last() != Some(&byte[0]) {
                        self.values.push(byte[0]);
                    }
                }
                Err(_) => self.faults += 1,
            }
        }
    }

    fn report(&self) -> Value {
        json!({ "seen": self.values, "reads": self.reads, "faults": self.faults })
    }
}

fn first_byte(at: Span) -> Value {
    let mut byte = [0];
    match at.read(&mut byte) {
        Ok(()) if !at.is_empty() => json!(byte[0]),
        _ => json!("fault"),
    }
}
