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
    /// Adds the member `number`, which has a packet, to the list of new members, unless a list
    /// contains it.
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

    /// Returns the member that sends next. A member without packets leaves the lists only when its
    /// deficit is positive; otherwise a member with one long packet at a time would always be new.
    pub(super) fn next(&mut self, mut has_packets: impl FnMut(usize) -> bool) -> Option<usize> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let number = *list.front()?;
            list.pop_front();
            let is_alone = self.new.is_empty() && self.old.is_empty();
            let Some(member) = self.members.get_mut(number) else {
                continue;
            };
            // If no other member is waiting, a negative deficit does not matter.
            if member.deficit <= 0 && !is_alone {
                member.deficit += QUANTUM;
                self.old.push_back(number);
                continue;
            }
            if has_packets(number) {
                if member.deficit <= 0 {
                    member.deficit = QUANTUM;
                }
                let list = if is_new { &mut self.new } else { &mut self.old };
                list.push_front(number);
                return Some(number);
            }
            // A member that empties and returns immediately must not count as new.
            if is_new && !self.old.is_empty() {
                self.old.push_back(number);
            } else {
                member.listed = false;
            }
        }
    }

    /// Renumbers the members: `kept` returns the new number of those that stay, in ascending order.
    pub(super) fn renumber(&mut self, kept: impl Fn(usize) -> Option<usize>) {
        for list in [&mut self.new, &mut self.old] {
            *list = list.iter().filter_map(|number| kept(*number)).collect();
        }
        let mut number = 0;
        self.members.retain(|_| {
            number += 1;
            kept(number - 1).is_some()
        });
    }

    /// Takes a sent packet's bytes from the member's deficit.
    pub(super) fn charge(&mut self, number: usize, bytes: u64) {
        if let Some(member) = self.members.get_mut(number) {
            member.deficit -= i64::try_from(bytes).unwrap_or(i64::MAX);
        }
    }
}
