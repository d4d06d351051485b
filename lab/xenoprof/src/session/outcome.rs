//! What came of a session's coordination.

use super::demux::Given;
use super::message::Named;
use super::saved::SavedSymbols;
use crate::model::{Mode, Session};

/// What a session's coordination came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Participants that were ready when the session began.
    pub members: Vec<Taken>,
    /// Those that were not.
    pub absent: Vec<String>,
}

/// One participant, at the end.
#[derive(Debug)]
pub struct Taken {
    /// Its domain's name.
    pub name: String,
    /// Who attributes.
    pub mode: Mode,
    /// Why it has not given everything, if so.
    pub lost: Option<String>,
    /// What it was given.
    pub given: Given,
    /// What it sent.
    pub received: Received,
}

/// What a participant sent.
#[derive(Debug, Default)]
pub struct Received {
    /// Names of addresses.
    pub names: Vec<Named>,
    /// Symbols of a passive domain, by address.
    pub symbols: SavedSymbols,
    /// The session of an agent.
    pub session: Option<Box<Session>>,
    /// Samples that it says it took.
    pub read: Option<u64>,
}
