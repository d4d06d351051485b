//! The consoles of all domains, polled through one descriptor.
//!
//! Each event is reported once; the manager watches a console again after each read. It does not
//! watch a console during a flood's pause, nor after the domain has closed it, although the core
//! still holds the pipe.

use crate::console::Console;
use crate::log::LogSender;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum number of consoles to read in one turn. The others follow in the next turn.
const EVENTS_MAX: usize = 64;

/// All consoles, by the places of their domains.
#[derive(Debug)]
pub(crate) struct Consoles {
    set: OwnedFd,
    all: BTreeMap<usize, Console>,
}

impl Consoles {
    pub(crate) fn create() -> Result<Self, Errno> {
        Ok(Self {
            set: epoll::create(CreateFlags::CLOEXEC)?,
            all: BTreeMap::new(),
        })
    }

    /// Returns a descriptor that is readable when any console is.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    pub(crate) fn get(&self, place: usize) -> Option<&Console> {
        self.all.get(&place)
    }

    /// Replaces the console of the domain at a place.
    pub(crate) fn insert(&mut self, place: usize, console: Console) {
        self.remove(place);
        self.all.insert(place, console);
        self.watch(place);
    }

    /// Removes the console of a removed domain.
    pub(crate) fn remove(&mut self, place: usize) -> Option<Console> {
        let console = self.all.remove(&place)?;
        if let Some(pipe) = console.pipe() {
            let _ = epoll::delete(&self.set, pipe);
        }
        Some(console)
    }

    /// Reads the remaining output after the domain at a place has exited.
    pub(crate) fn drain(&mut self, place: usize, log: &mut LogSender, now_ns: u64) {
        if let Some(console) = self.all.get_mut(&place) {
            console.drain(log, now_ns);
        }
    }

    /// Reads once from each console that is ready. Returns the places of consoles that pause, with
    /// the time to watch them again.
    pub(crate) fn read_ready(&mut self, log: &mut LogSender, now_ns: u64) -> Vec<(usize, u64)> {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX];
        let ready = epoll::wait(&self.set, &mut events, Some(&Timespec::default()));
        let mut pauses = Vec::new();
        let Ok((ready, _)) = ready else {
            return pauses;
        };
        let places = ready.iter().map(|event| event.data.u64() as usize);
        for place in places {
            let Some(console) = self.all.get_mut(&place) else {
                continue;
            };
            console.read_chunk(log, now_ns);
            match console.deadline_ns(now_ns) {
                Some(until_ns) => pauses.push((place, until_ns)),
                None => self.watch(place),
            }
        }
        pauses
    }

    /// Watches a console again, unless its domain has closed it.
    pub(crate) fn watch(&mut self, place: usize) {
        let Some(pipe) = self.all.get(&place).and_then(Console::pipe) else {
            return;
        };
        let data = EventData::new_u64(place as u64);
        let once = EventFlags::IN | EventFlags::ONESHOT;
        if epoll::modify(&self.set, pipe, data, once) == Err(Errno::NOENT) {
            // If the kernel has no memory for it, the console is read when its domain exits.
            let _ = epoll::add(&self.set, pipe, data, once);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::{files, without_stamps};
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::write;
    use rustix::pipe::{PipeFlags, pipe_with};

    /// Returns a console, its domain's end of the pipe, and the core's duplicate.
    fn console(name: &str) -> (Console, OwnedFd, OwnedFd) {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let copy = ours.try_clone().unwrap();
        (Console::new(name, ours), theirs, copy)
    }

    fn is_ready(consoles: &Consoles) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(consoles.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn each_console_is_read_until_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogSender::start(Some(files(&path))).unwrap();
        let mut consoles = Consoles::create().unwrap();
        let (one, to_one, _one) = console("one");
        let (two, to_two, _two) = console("two");
        consoles.insert(1, one);
        consoles.insert(2, two);
        assert!(!is_ready(&consoles));
        for text in [b"a\n", b"b\n"] {
            write(&to_one, text).unwrap();
            assert!(is_ready(&consoles));
            consoles.read_ready(&mut log, 0);
            assert!(!is_ready(&consoles));
        }
        write(&to_two, b"c\n").unwrap();
        drop(to_one);
        // The first turn reads the rest of the output, the second the end of the file.
        for _ in 0..2 {
            consoles.read_ready(&mut log, 0);
        }
        assert!(!is_ready(&consoles));
        assert!(consoles.get(1).unwrap().pipe().is_none());
        // A replaced console is read, a removed one is not.
        let (next, to_next, _next) = console("next");
        consoles.insert(1, next);
        write(&to_next, b"d\n").unwrap();
        consoles.remove(2);
        write(&to_two, b"unread\n").unwrap();
        consoles.read_ready(&mut log, 0);
        assert!(!is_ready(&consoles));
        assert_eq!(consoles.get(1).unwrap().last_line(), "d");
        drop(log);
        let text = without_stamps(&std::fs::read_to_string(path).unwrap());
        assert_eq!(text, "one: a\none: b\ntwo: c\nnext: d\n");
    }

    #[test]
    fn a_flooding_console_does_not_delay_others() {
        let mut log = LogSender::start(None).unwrap();
        let mut consoles = Consoles::create().unwrap();
        let (loud, to_loud, _loud) = console("loud");
        let (quiet, to_quiet, _quiet) = console("quiet");
        consoles.insert(1, loud);
        consoles.insert(2, quiet);
        let mut pauses = Vec::new();
        while pauses.is_empty() {
            write(&to_loud, &[b'\n', b'x'].repeat(2048)).unwrap();
            pauses = consoles.read_ready(&mut log, 0);
        }
        assert!(matches!(pauses[..], [(1, 1..)]), "{pauses:?}");
        write(&to_loud, b"more\n").unwrap();
        assert!(!is_ready(&consoles));
        write(&to_quiet, b"still read\n").unwrap();
        assert_eq!(consoles.read_ready(&mut log, 0), []);
        assert_eq!(consoles.get(2).unwrap().last_line(), "still read");
        consoles.watch(1);
        assert!(is_ready(&consoles));
    }
}
