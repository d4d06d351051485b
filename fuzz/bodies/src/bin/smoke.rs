//! `smoke SECONDS [BODY…]`: runs each named body, or all, for this many seconds on mutated inputs
//! from the corpus and on random inputs. Runs one body per CPU at the same time. It needs no other
//! compiler or tool, but lacks the guidance of libFuzzer, which searches for inputs that reach new
//! code.
//!
//! An input on which a body panics or hangs is written to `regressions/`, which the tests use from
//! then on.

use fuzz_bodies::{BODIES, Body};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum length of an input, bytes.
const INPUT_MAX: usize = 4096;
/// A body that runs longer than this hangs.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Stack size of a body, like libFuzzer's.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(seconds) = args.next().and_then(|text| text.parse().ok()) else {
        eprintln!("usage: smoke SECONDS [BODY…]");
        return ExitCode::from(2);
    };
    let named: Vec<String> = args.collect();
    let unknown = |name: &&String| BODIES.iter().all(|(body, _)| body != name);
    if let Some(name) = named.iter().find(unknown) {
        let bodies: Vec<&str> = BODIES.iter().map(|(body, _)| *body).collect();
        eprintln!("no body {name}; the bodies are: {}", bodies.join(", "));
        return ExitCode::from(2);
    }
    let is_chosen = |(name, _): &(&str, Body)| named.is_empty() || named.iter().any(|n| n == name);
    let queue = Mutex::new(BODIES.into_iter().filter(is_chosen));
    let has_findings = AtomicBool::new(false);
    let run = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((name, body)) = next else { return };
            match smoke(name, body, Duration::from_secs(seconds)) {
                Ok(inputs) => println!("{name}: {inputs} inputs"),
                Err(why) => {
                    println!("{name}: {why}");
                    has_findings.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cpus).for_each(|_| drop(scope.spawn(run))));
    ExitCode::from(u8::from(has_findings.into_inner()))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Runs a body for `time`. Returns the number of inputs, or the failing input.
fn smoke(name: &str, body: Body, time: Duration) -> Result<u64, String> {
    let current = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&current);
    let (beat, beats) = mpsc::channel();
    let inputs = Inputs::new(name)?;
    let run = std::thread::Builder::new().stack_size(STACK_BYTES);
    let run = run.spawn(move || play(inputs, body, time, &shared, &beat));
    let run = run.map_err(|error| format!("cannot start: {error}"))?;
    let why = loop {
        match beats.recv_timeout(BODY_TIMEOUT) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => break "does not end",
            Err(RecvTimeoutError::Disconnected) => match run.join() {
                Ok(Some(inputs)) => return Ok(inputs),
                Ok(None) | Err(_) => break "breaks a promise",
            },
        }
    };
    let input = current.lock().unwrap_or_else(PoisonError::into_inner);
    Err(match save_regression(name, &input) {
        Ok(path) => format!("{why}: {}", path.display()),
        Err(error) => format!("{why}, and its input cannot be kept ({error}): {input:02x?}"),
    })
}

/// Passes inputs to a body. Returns their number, or `None` if an input made it panic.
fn play(
    mut inputs: Inputs,
    body: Body,
    time: Duration,
    current: &Mutex<Vec<u8>>,
    beat: &mpsc::Sender<()>,
) -> Option<u64> {
    let end = Instant::now() + time;
    let mut count = 0;
    while Instant::now() < end {
        let input = inputs.next();
        current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&input);
        catch_unwind(AssertUnwindSafe(|| body(&input))).ok()?;
        count += 1;
        // Sending cannot fail, because the receiver outlives this thread.
        let _sent = beat.send(());
    }
    Some(count)
}

fn save_regression(name: &str, input: &[u8]) -> std::io::Result<PathBuf> {
    let folder = folder().join("regressions");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}-{:08x}", crc32fast::hash(input)));
    fs::write(&path, input)?;
    Ok(path)
}

/// An endless source of inputs.
struct Inputs {
    /// Kept inputs, each of which is used once unchanged.
    kept: Vec<Vec<u8>>,
    given: usize,
    random: Xoshiro256PlusPlus,
}

impl Inputs {
    /// Returns the inputs of a body: those in `seeds/` and `regressions/` that begin with its name,
    /// and those that libFuzzer has found.
    fn new(name: &str) -> Result<Self, String> {
        let mut kept = Vec::new();
        for (place, prefix) in [
            (folder().join("seeds"), format!("{name}-")),
            (folder().join("regressions"), format!("{name}-")),
            (folder().join("../corpus").join(name), String::new()),
        ] {
            for entry in fs::read_dir(&place).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().starts_with(&prefix) {
                    let bytes = fs::read(entry.path());
                    kept.push(bytes.map_err(|e| format!("{}: {e}", entry.path().display()))?);
                }
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self {
            kept,
            given: 0,
            random: Xoshiro256PlusPlus::seed_from_u64(now.map_or(1, |now| now.as_nanos() as u64)),
        })
    }

    fn below(&mut self, n: usize) -> usize {
        (self.random.next_u64() % n.max(1) as u64) as usize
    }

    fn next(&mut self) -> Vec<u8> {
        if let Some(kept) = self.kept.get(self.given) {
            self.given += 1;
            return kept.clone();
        }
        let mut input = match self.below(2) {
            0 => self.some_kept(),
            _ => self.random_bytes(),
        };
        for _ in 0..self.below(6) {
            self.change(&mut input);
        }
        input.truncate(INPUT_MAX);
        input
    }

    fn some_kept(&mut self) -> Vec<u8> {
        let at = self.below(self.kept.len());
        self.kept.get(at).cloned().unwrap_or_default()
    }

    /// Returns bytes of one kind: either arbitrary values, or small values, which act as choices.
    fn random_bytes(&mut self) -> Vec<u8> {
        let most = [16, 256, INPUT_MAX][self.below(3)];
        let len = self.below(most);
        let below = [256, 256, 8, 48][self.below(4)];
        (0..len).map(|_| self.below(below) as u8).collect()
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let (at, len) = (self.below(input.len() + 1), self.below(32));
        let end = input.len().min(at + len);
        match self.below(6) {
            0 => drop(input.drain(at..end)),
            1 => {
                let part = input.get(at..end).unwrap_or_default().to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, part);
            }
            2 => {
                let other = self.some_kept();
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend(other.get(from..).unwrap_or_default());
            }
            3 => input.insert(at, self.below(256) as u8),
            4 => {
                let edge = [0, 1, 0x7f, 0x80, 0xff][self.below(5)];
                input
                    .iter_mut()
                    .skip(at)
                    .take(4)
                    .for_each(|byte| *byte = edge);
            }
            _ => {
                let bit = 1 << self.below(8);
                input
                    .iter_mut()
                    .skip(at)
                    .take(1)
                    .for_each(|byte| *byte ^= bit);
            }
        }
    }
}
