//! Guests on their way in or out, and reloads: how far they are, and when they are looked at again.

use super::tell::Telling;
use crate::reload::Step;
use abi::machine::Setting;
use abi::reload::Reloaded;
use std::collections::VecDeque;

/// How long it may take until a guest is up.
pub(super) const UP_NS: u64 = 20_000_000_000;
/// After so long who waits is told; it goes on all the same.
pub(super) const GONE_NS: u64 = 20_000_000_000;

/// Who has asked that a guest comes or goes, and is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedBy {
    /// A client, by its number.
    Client(u64),
    /// The reload that is under way.
    Reload,
    /// Nobody now: it was there before the core has ended.
    Before,
}

/// How far a guest of the machine before is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tried {
    /// When it was tried first.
    pub(super) since_ns: u64,
    pub(super) times: u32,
    /// When it is tried again, if it is to be.
    pub(super) again_ns: Option<u64>,
}

/// A guest on its way in.
#[derive(Debug)]
pub(super) struct Attach {
    pub(super) place: usize,
    pub(super) name: String,
    pub(super) macs: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) asker: AskedBy,
    pub(super) began_ns: u64,
    pub(super) tellings: Vec<Telling>,
}

impl Attach {
    /// When it wants to be looked at, if nothing tells before.
    pub(super) fn due_ns(&self) -> u64 {
        let late = self.began_ns.saturating_add(UP_NS);
        let tellings = self.tellings.iter().filter_map(Telling::due_ns);
        tellings.fold(late, u64::min)
    }

    /// Tokens of answers that it waits for.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> {
        self.tellings.iter().filter_map(Telling::token)
    }
}

/// A guest on its way out.
#[derive(Debug)]
pub(super) struct Detach {
    pub(super) place: usize,
    pub(super) name: String,
    pub(super) began_ns: u64,
    /// Who is told when it has gone, and what: none, that it is detached.
    pub(super) askers: Vec<(AskedBy, Option<String>)>,
    /// The workers' connections, and what they are told of them.
    pub(super) tellings: Vec<(u32, Telling)>,
    /// When the core is asked again to forget it, if somebody had a page of it.
    pub(super) forget_ns: Option<u64>,
}

impl Detach {
    /// When it wants to be looked at, if nothing tells before.
    pub(super) fn due_ns(&self) -> u64 {
        let late = match self.askers.is_empty() {
            true => u64::MAX,
            false => self.began_ns.saturating_add(GONE_NS),
        };
        let tellings = self
            .tellings
            .iter()
            .filter_map(|(_, telling)| telling.due_ns());
        tellings.chain(self.forget_ns).fold(late, u64::min)
    }

    /// Tokens of answers that it waits for.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> {
        let tellings = self.tellings.iter();
        tellings.filter_map(|(_, telling)| telling.token())
    }
}

/// A reload on its way.
#[derive(Debug)]
pub(super) struct Reload {
    pub(super) client: u64,
    pub(super) began_ns: u64,
    /// What the client is told.
    pub(super) answer: Reloaded,
    pub(super) left: VecDeque<Step>,
    pub(super) progress: Progress,
}

/// How far its present step is.
#[derive(Debug)]
pub(super) enum Progress {
    /// There is none.
    Between,
    /// It is under way.
    UnderWay,
    /// The driver domain is told.
    Telling(Change),
    /// The driver domain is started again with other NICs.
    Refitting(Refit),
    /// A domain is started again, so that its interface is made again.
    Remaking(Refit),
    /// The driver domain runs, and connects to its guests until the time given.
    Connecting(u64),
    /// It is done, or why not.
    Over(Result<(), String>),
}

/// A guest that is there becomes another.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) guest: Setting,
    pub(super) began_ns: u64,
    pub(super) tellings: Vec<Telling>,
}

/// Domains are started again, as a step of a reload.
#[derive(Debug)]
pub(super) struct Refit {
    /// By the domain's place, how often it had been started again before.
    pub(super) starts: Vec<(usize, u64)>,
    pub(super) began_ns: u64,
    /// Whether the workers end now and start by the next step, which has NICs, too.
    pub(super) is_held: bool,
}

impl Reload {
    /// When it wants to be looked at, if nothing tells before.
    pub(super) fn due_ns(&self) -> Option<u64> {
        match &self.progress {
            Progress::UnderWay => None,
            Progress::Telling(change) => {
                let late = change.began_ns.saturating_add(UP_NS);
                let due = change.tellings.iter().filter_map(Telling::due_ns);
                due.chain([late]).min()
            }
            Progress::Refitting(refit) | Progress::Remaking(refit) => {
                Some(refit.began_ns.saturating_add(UP_NS))
            }
            Progress::Connecting(until) => Some(*until),
            Progress::Between | Progress::Over(_) => Some(0),
        }
    }

    /// Tokens of answers that it waits for.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> {
        let tellings = match &self.progress {
            Progress::Telling(change) => &change.tellings[..],
            _ => &[],
        };
        tellings.iter().filter_map(Telling::token)
    }
}
