//! Journals of rings (`vif::ring::Journal`), in a file that outlives this process.
//!
//! ```text
//!   the file: cells of CELL bytes, one for each queue of an interface
//!     page 0     u32 used, domain, device, queue, tx-ring-ref, rx-ring-ref, event channel of both
//!                rings or of packets from the guest, 0 or that of packets to the guest;
//!                of an interface's first queue also the groups that its guest hears, its choice of
//!                queues, the request of its control ring that was taken last
//!     page 1 …   the journal of the ring from the guest
//!          …     the journal of the ring to the guest
//! ```
//!
//! A cell identifies its connection. A process that takes over an interface uses the cell of the
//! same connection. A new connection begins with an empty cell.

use crate::dev::{ForeignWindow, PageRights};
use crate::interfaces::{INTERFACES_MAX, InterfaceId};
use crate::netif::control::TakenRequest;
use crate::netif::features::{EventPorts, QUEUES_MAX};
use abi::PAGE;
use driver::vifs::hashing::Hashing;
use shmem::Span;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use vif::netback::MulticastFilter;
use vif::ring::{Journal, SLOTS_PER_PAGE};

const _: () = {
    assert!(NAME * 4 <= GROUPS && GROUPS + MulticastFilter::BYTES <= HASHING);
    assert!(HASHING + Hashing::BYTES <= REQUEST && REQUEST + TakenRequest::BYTES <= PAGE);
};

/// Size of a ring's journal in bytes.
const JOURNAL: usize = Journal::bytes(SLOTS_PER_PAGE).next_multiple_of(PAGE);
/// Size of a cell in bytes.
const CELL: usize = PAGE + 2 * JOURNAL;
/// Number of words that identify a connection.
const NAME: usize = 8;
/// Offsets of the groups, of the flow steering, and of the control ring's request.
const GROUPS: usize = 64;
const HASHING: usize = 1024;
const REQUEST: usize = 2048;
/// Number of these words that identify the queue and not its connection.
const OF_QUEUE: usize = 4;

/// Identity of a queue's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId {
    /// The interface.
    pub key: InterfaceId,
    /// The queue's number.
    pub queue: u32,
    /// The grants of both rings.
    pub rings: [u32; 2],
    /// The frontend's ends of the event channels.
    pub ports: EventPorts,
}

impl ConnectionId {
    /// Returns the words that distinguish this connection from others.
    fn words(&self) -> [u32; NAME] {
        let InterfaceId { domain, device } = self.key;
        let [tx, rx] = self.rings;
        // No event channel has port 0.
        let ports = match self.ports {
            EventPorts::Shared(port) => [port, 0],
            EventPorts::Split { tx, rx } => [tx, rx],
        };
        let [first, second] = ports;
        [1, domain.into(), device, self.queue, tx, rx, first, second]
    }
}

/// The stored state of a queue's connection.
#[derive(Debug)]
pub struct StoredConnection {
    /// The cell, for [`Journals::end`].
    pub cell: usize,
    /// The journals of the ring from the guest and of the ring to it.
    pub journals: [Journal; 2],
    /// The guest's multicast groups; used only for the first queue.
    pub groups: MulticastFilter,
    /// The guest's flow steering; used only for the first queue.
    pub hashing: Hashing,
    /// The last request taken from the control ring; used only for the first queue.
    pub request: TakenRequest,
}

/// The journals of all interfaces.
#[derive(Debug)]
pub struct Journals {
    memory: Span,
    /// For each cell: whether this process uses it.
    held: Vec<bool>,
}

impl Journals {
    /// Opens the journals in the file at `path`. Creates the file if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be created or extended to its length.
    pub fn open(path: &Path) -> io::Result<Self> {
        let bytes = CELL * INTERFACES_MAX * QUEUES_MAX;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        file.set_len(bytes as u64)?;
        let memory =
            ForeignWindow::new(bytes / PAGE)?.map_device(file.as_fd(), 0, PageRights::ReadWrite)?;
        Ok(Self::over(memory))
    }

    fn over(memory: Span) -> Self {
        Self {
            memory,
            held: vec![false; memory.len() / CELL],
        }
    }

    /// Returns the state of a connection. It is empty unless the connection is taken over
    /// (`resumes`) and was recorded before. Returns `None` if every cell is in use.
    pub fn begin(&mut self, of: ConnectionId, resumes: bool) -> Option<StoredConnection> {
        let named: Vec<Option<[u32; NAME]>> =
            (0..self.held.len()).map(|cell| self.name(cell)).collect();
        let free = |cell: &usize| self.held.get(*cell) == Some(&false);
        let same_queue = |cell: &usize| {
            let name = named.get(*cell).copied().flatten();
            name.is_some_and(|name| name.get(..OF_QUEUE) == of.words().get(..OF_QUEUE))
        };
        let cells = 0..self.held.len();
        // Prefer the cell that the queue had before, then an unused cell, then one whose interface
        // no longer exists.
        let found = cells.clone().filter(free).find(same_queue);
        let unused = |cell: &usize| named.get(*cell) == Some(&None);
        let found = found.or_else(|| cells.clone().filter(free).find(unused));
        let cell = found.or_else(|| cells.clone().find(free))?;
        let noted = named.get(cell).copied().flatten() == Some(of.words());
        if !(resumes && noted) {
            self.empty(cell);
            let name = self.cell(cell);
            // The identity becomes valid when its first word is written.
            let words = of.words();
            let _ = name.write_words(4, words.get(1..).unwrap_or(&[]));
            let _ = name.store_u32(0, words[0]);
        }
        if let Some(held) = self.held.get_mut(cell) {
            *held = true;
        }
        let journal = |n: usize| {
            let at = PAGE + n * JOURNAL;
            Journal::in_memory(self.cell(cell).sub(at, JOURNAL).unwrap_or(Span::EMPTY))
        };
        let part = |at, bytes| self.cell(cell).sub(at, bytes).unwrap_or(Span::EMPTY);
        let groups = MulticastFilter::in_memory(part(GROUPS, MulticastFilter::BYTES));
        if !resumes {
            groups.begin();
        }
        Some(StoredConnection {
            cell,
            journals: [journal(0), journal(1)],
            groups,
            hashing: Hashing::in_memory(part(HASHING, Hashing::BYTES)),
            request: TakenRequest::in_memory(part(REQUEST, TakenRequest::BYTES)),
        })
    }

    /// Releases a cell but keeps its contents: the next connection empties it first, and if this
    /// process is exiting, its successor uses them.
    pub fn end(&mut self, cell: usize) {
        if let Some(held) = self.held.get_mut(cell) {
            *held = false;
        }
    }

    fn empty(&self, cell: usize) {
        // The identity is cleared first, because a journal without one belongs to no connection.
        let memory = self.cell(cell);
        let _ = memory.store_u32(0, 0);
        let _ = memory.fill(0);
    }

    fn name(&self, cell: usize) -> Option<[u32; NAME]> {
        let mut words = [0; NAME];
        self.cell(cell).read_words(0, &mut words).ok()?;
        (words[0] == 1).then_some(words)
    }

    fn cell(&self, cell: usize) -> Span {
        let cell = self.memory.sub(cell * CELL, CELL);
        cell.unwrap_or(Span::EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmem::Area;

    fn memory(cells: usize) -> Span {
        Area::anonymous(cells * CELL).unwrap().span()
    }

    fn connection(domain: u16, port: u32) -> ConnectionId {
        let key = InterfaceId { domain, device: 0 };
        let rings = [8, 9];
        ConnectionId {
            key,
            queue: 0,
            rings,
            ports: EventPorts::Shared(port),
        }
    }

    /// Writes marks, which [`marked`](Self::marked) finds, to both journals of a cell.
    fn mark(memory: Span, cell: usize) {
        let at = cell * CELL + PAGE;
        memory.store_u32(at, 77).unwrap();
        memory.store_u32(at + JOURNAL, 78).unwrap();
    }

    fn marked(memory: Span, cell: usize) -> bool {
        let at = cell * CELL + PAGE;
        memory.load_u32(at) == Ok(77) && memory.load_u32(at + JOURNAL) == Ok(78)
    }

    #[test]
    fn the_next_process_finds_the_journal() {
        let memory = memory(3);
        let mut first = Journals::over(memory);
        assert_eq!(first.begin(connection(1, 5), false).unwrap().cell, 0);
        assert_eq!(first.begin(connection(2, 5), false).unwrap().cell, 1);
        (0..2).for_each(|cell| mark(memory, cell));
        drop(first);
        let mut second = Journals::over(memory);
        assert_eq!(second.begin(connection(2, 5), true).unwrap().cell, 1);
        assert_eq!(second.begin(connection(1, 5), true).unwrap().cell, 0);
        assert!(marked(memory, 0) && marked(memory, 1));
    }

    #[test]
    fn a_new_connection_starts_with_an_empty_journal() {
        for (next, resumes) in [(connection(1, 6), true), (connection(1, 5), false)] {
            let memory = memory(2);
            Journals::over(memory)
                .begin(connection(1, 5), false)
                .unwrap();
            mark(memory, 0);
            assert_eq!(Journals::over(memory).begin(next, resumes).unwrap().cell, 0);
            assert!(!marked(memory, 0), "{next:?} {resumes}");
        }
    }

    #[test]
    fn each_queue_has_a_cell() {
        let memory = memory(3);
        let of = |queue| ConnectionId {
            queue,
            ..connection(1, 5)
        };
        let mut first = Journals::over(memory);
        for queue in 0..3 {
            assert_eq!(first.begin(of(queue), false).unwrap().cell, queue as usize);
            mark(memory, queue as usize);
        }
        let mut next = Journals::over(memory);
        for queue in [2, 0, 1] {
            assert_eq!(next.begin(of(queue), true).unwrap().cell, queue as usize);
            assert!(marked(memory, queue as usize));
        }
    }

    #[test]
    fn groups_are_kept_with_the_connection() {
        let memory = memory(1);
        let kept = |of, resumes| Journals::over(memory).begin(of, resumes).unwrap().groups;
        let first = kept(connection(1, 5), false);
        first.apply(true);
        assert!(kept(connection(1, 5), true).is_applied());
        // A connection is taken over without a record, so the requested groups are unknown.
        let unknown = kept(connection(1, 6), true);
        unknown.apply(true);
        assert!(!unknown.is_applied());
        let anew = kept(connection(1, 6), false);
        assert!(!anew.is_applied(), "no group has been requested yet");
        anew.apply(true);
        assert!(anew.is_applied());
    }

    #[test]
    fn cells_of_dead_interfaces_are_reused_last() {
        let memory = memory(2);
        let mut dead = Journals::over(memory);
        dead.begin(connection(1, 5), false).unwrap();
        dead.begin(connection(2, 5), false).unwrap();
        let mut journals = Journals::over(memory);
        assert_eq!(journals.begin(connection(2, 5), true).unwrap().cell, 1);
        assert_eq!(journals.begin(connection(3, 5), false).unwrap().cell, 0);
        assert!(journals.begin(connection(4, 5), false).is_none());
    }
}
