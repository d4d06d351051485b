//! The machine of the node, accessed through its control socket, and the state of its guests'
//! rules.

use crate::rule::PodRules;
use abi::machine::{ConfigValue, ControlRequest};
use abi::reload::RulesReply;
use client::{Error, send_request};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Deadline of a request: longer than the 20 s within which the machine answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(25);
/// Maximum number of requests that are sent at the same time.
const REQUESTS_MAX: usize = 4;
/// The pause after the first failure. It doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A failure that lasts for this number of attempts is reported. A guest that is still being
/// attached has no rules yet.
const ATTEMPTS: u32 = 6;

/// The rules of a guest.
#[derive(Debug, Default)]
pub(crate) struct GuestState {
    /// The desired rules, or `None` if they are unknown. The guest then keeps its present rules.
    desired: Option<PodRules>,
    /// Whether the guest has the desired rules.
    is_set: bool,
    /// Consecutive failures, and the time of the next attempt.
    failures: u32,
    retry: Option<Instant>,
}

impl GuestState {
    /// Sets the desired rules.
    pub(crate) fn set_desired(&mut self, rules: PodRules) {
        if self.desired.as_ref() != Some(&rules) {
            *self = Self {
                desired: Some(rules),
                ..Self::default()
            };
        }
    }

    /// Returns whether the guest has the desired rules.
    pub(crate) fn is_done(&self) -> bool {
        self.is_set || self.desired.is_none()
    }

    fn failed(&mut self) {
        let pause = PAUSE_MIN.saturating_mul(1 << self.failures.min(16));
        self.retry = Some(Instant::now() + pause.min(PAUSE_MAX));
        self.failures = self.failures.saturating_add(1);
    }
}

/// A machine, which may not be running.
#[derive(Debug)]
pub(crate) struct NodeMachine {
    socket: PathBuf,
    /// Identifies the socket.
    identity: Option<[i64; 4]>,
    /// Whether the absence of the machine was reported.
    is_absent: bool,
}

impl NodeMachine {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            identity: None,
            is_absent: false,
        }
    }

    /// Returns whether the socket was replaced since the last call. A new machine may have other
    /// rules.
    pub(crate) fn was_replaced(&mut self) -> bool {
        let Ok(now) = fs::metadata(&self.socket) else {
            return false;
        };
        let now = [
            now.dev() as i64,
            now.ino() as i64,
            now.ctime(),
            now.ctime_nsec(),
        ];
        self.identity.replace(now) != Some(now)
    }

    /// Sets the rules of guests whose rules differ from the desired ones; returns the number of
    /// guests that were updated.
    pub(crate) fn set<'g>(
        &mut self,
        guests: impl Iterator<Item = (&'g str, &'g mut GuestState)>,
        notes: &mut Vec<String>,
    ) -> usize {
        let now = Instant::now();
        let is_due = |state: &GuestState| state.retry.is_none_or(|retry| retry <= now);
        let due: Vec<_> = guests
            .filter(|(_, state)| !state.is_done() && is_due(state))
            .collect();
        if due.is_empty() {
            return 0;
        }
        let threads = due.len().min(REQUESTS_MAX);
        let queue = Mutex::new(due.into_iter());
        let next = || queue.lock().ok()?.next();
        let work = || {
            let mut done = Vec::new();
            while let Some((guest, state)) = next() {
                let Some(rules) = &state.desired else {
                    continue;
                };
                let answer = self.replace(guest, rules);
                done.push((guest, state, answer));
            }
            done
        };
        let answers = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let ended = threads.into_iter().flat_map(thread::ScopedJoinHandle::join);
            ended.flatten().collect::<Vec<_>>()
        });
        let mut set = 0;
        for (guest, state, answer) in answers {
            match answer {
                Ok(changed) => {
                    state.is_set = true;
                    set += 1;
                    self.is_absent = false;
                    notes.extend(changed.warning);
                }
                Err(error @ Error::Refused(_)) => {
                    state.failed();
                    if state.failures == ATTEMPTS {
                        notes.push(format!("guest {guest}: {error}; trying again"));
                    }
                }
                Err(error) => {
                    state.failed();
                    if !std::mem::replace(&mut self.is_absent, true) {
                        notes.push(format!("{error}; trying again"));
                    }
                }
            }
        }
        set
    }

    fn replace(&self, guest: &str, rules: &PodRules) -> Result<RulesReply, Error> {
        let guest = ConfigValue::Section(BTreeMap::from([
            ("name".to_owned(), ConfigValue::Text(guest.to_owned())),
            ("vif".to_owned(), ConfigValue::List(vec![rules.section()])),
        ]));
        send_request(
            &self.socket,
            &ControlRequest::Rules { guest },
            ANSWER_TIMEOUT,
        )
    }
}
