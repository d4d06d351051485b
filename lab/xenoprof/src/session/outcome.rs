//! Results of the participants of a session.

use super::demux::Delivered;
use super::message::AddressName;
use super::saved::SavedSymbols;
use crate::model::{Mode, Session};

/// Results of the participants of a session.
#[derive(Debug, Default)]
pub struct SessionOutcome {
    /// Participants that were ready at the session's start.
    pub members: Vec<FinalState>,
    /// Expected participants that were not ready.
    pub absent: Vec<String>,
}

/// Final state of a participant.
#[derive(Debug)]
pub struct FinalState {
    /// Domain name.
    pub name: String,
    /// The side that attributes its samples.
    pub mode: Mode,
    /// Reason why its results are incomplete, if they are.
    pub lost: Option<String>,
    /// Data delivered to it.
    pub delivered: Delivered,
    /// Data received from it.
    pub received: ParticipantData,
}

/// Data received from a participant.
#[derive(Debug, Default)]
pub struct ParticipantData {
    /// Names of addresses.
    pub names: Vec<AddressName>,
    /// Symbols of a passive domain, by address.
    pub symbols: SavedSymbols,
    /// Session of an agent.
    pub session: Option<Box<Session>>,
    /// Samples that it reports as read.
    pub read: Option<u64>,
}
