//! Deficit round robin with priority for new members (RFC 8290, 4.2).

use super::codel;
use std::collections::VecDeque;

/// Bytes that a member may send per turn: a full packet.
const QUANTUM: i64 = codel::MTU_BYTES as i64;

/// Position of a member in the schedule.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    deficit: i64,
    /// Whether it is in one of the lists.
    listed: bool,
}

/// The members that have packets, and whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Turns {
    members: Vec<Member>,
    /// Members that have just begun. `old` lists all others with packets.
    new: VecDeque<usize>,
    old: VecDeque<usize>,
}

impl Turns {
    /// Lists the member `number`, which has a packet, unless it is listed.
    pub(super) fn begin(&mut self, number: usize) {
        if self.members.len() <= number {
            self.members.resize(number + 1, Member::default());
        }
        if let Some(member) = self.members.get_mut(number)
            && !member.listed
        {
            *member = Member {
                deficit: QUANTUM,
                listed: true,
            };
            self.new.push_back(number);
        }
    }

    /// Returns the member that sends next. `has_packets` is asked once about each member that is
    /// due.
    pub(super) fn next(&mut self, mut has_packets: impl FnMut(usize) -> bool) -> Option<usize> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let number = *list.front()?;
            let Some(member) = self.members.get_mut(number) else {
                list.pop_front();
                continue;
            };
            if !has_packets(number) {
                list.pop_front();
                // A member that empties and returns at once must not count as new.
                if is_new && !self.old.is_empty() {
                    self.old.push_back(number);
                } else {
                    member.listed = false;
                }
                continue;
            }
            if member.deficit > 0 {
                return Some(number);
            }
            list.pop_front();
            let is_alone = self.new.is_empty() && self.old.is_empty();
            member.deficit = match is_alone {
                // No other member is waiting, so its debt does not matter.
                true => QUANTUM,
                false => member.deficit + QUANTUM,
            };
            self.old.push_back(number);
        }
    }

    /// Takes a sent packet's bytes from the member's deficit.
    pub(super) fn charge(&mut self, number: usize, bytes: u64) {
        if let Some(member) = self.members.get_mut(number) {
            member.deficit -= i64::try_from(bytes).unwrap_or(i64::MAX);
        }
    }
}
