//! The consoles of all domains, waited for together: one descriptor, however many there are.
//!
//! A console is told of once, and watched again when it was taken from. So one that floods is left
//! alone for its pause, and one whose domain has closed it is not heard of any more, although the
//! core has its pipe open, too.

use crate::console::Console;
use crate::log::Log;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Consoles that are taken from in one turn, at most; others in the next.
const EVENTS: usize = 64;

/// They, by the places of their domains in the machine.
#[derive(Debug)]
pub(crate) struct Consoles {
    set: OwnedFd,
    all: BTreeMap<usize, Console>,
    /// Those that are left alone for a while.
    paused: BTreeSet<usize>,
}

impl Consoles {
    pub(crate) fn create() -> Result<Self, Errno> {
        Ok(Self {
            set: epoll::create(CreateFlags::CLOEXEC)?,
            all: BTreeMap::new(),
            paused: BTreeSet::new(),
        })
    }

    /// Readable when one of them is.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    pub(crate) fn get(&self, place: usize) -> Option<&Console> {
        self.all.get(&place)
    }

    /// The domain at a place has this console from now on.
    pub(crate) fn insert(&mut self, place: usize, console: Console, now_ns: u64) {
        self.remove(place);
        self.all.insert(place, console);
        self.watch(place, now_ns);
    }

    /// There is no domain at a place any more.
    pub(crate) fn remove(&mut self, place: usize) -> Option<Console> {
        self.paused.remove(&place);
        let console = self.all.remove(&place)?;
        if let Some(pipe) = console.pipe() {
            let _ = epoll::delete(&self.set, pipe);
        }
        Some(console)
    }

    /// Takes what is left when the domain at a place is gone.
    pub(crate) fn drain(&mut self, place: usize, log: &mut Log, now_ns: u64) {
        if let Some(console) = self.all.get_mut(&place) {
            console.drain(log, now_ns);
        }
    }

    /// When a pause is over.
    pub(crate) fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        let paused = self.paused.iter().filter_map(|place| self.all.get(place));
        paused
            .filter_map(|console| console.deadline_ns(now_ns))
            .min()
    }

    /// Goes on with those whose pause is over.
    pub(crate) fn resume(&mut self, now_ns: u64) {
        for place in std::mem::take(&mut self.paused) {
            self.watch(place, now_ns);
        }
    }

    /// Takes from those that are ready, once each.
    pub(crate) fn take(&mut self, log: &mut Log, now_ns: u64) {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS];
        let ready = epoll::wait(&self.set, &mut events, Some(&Timespec::default()));
        let Ok((ready, _)) = ready else {
            return;
        };
        let places = ready.iter().map(|event| event.data.u64() as usize);
        for place in places {
            if let Some(console) = self.all.get_mut(&place) {
                console.take(log, now_ns);
                self.watch(place, now_ns);
            }
        }
    }

    /// Watches a console again, unless it is over or paused.
    fn watch(&mut self, place: usize, now_ns: u64) {
        let Some(console) = self.all.get(&place) else {
            return;
        };
        let Some(pipe) = console.watch(now_ns) else {
            if console.deadline_ns(now_ns).is_some() {
                self.paused.insert(place);
            }
            return;
        };
        let data = EventData::new_u64(place as u64);
        let once = EventFlags::IN | EventFlags::ONESHOT;
        if epoll::modify(&self.set, pipe, data, once) == Err(Errno::NOENT) {
            // Without memory for it the console is read when its domain ends.
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

    /// A console, the end that its domain writes to, and the core's copy of its pipe.
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
    fn each_is_heard_and_one_that_is_closed_is_not_heard_of_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Log::start(Some(files(&path))).unwrap();
        let mut consoles = Consoles::create().unwrap();
        let (one, to_one, _one) = console("one");
        let (two, to_two, _two) = console("two");
        consoles.insert(1, one, 0);
        consoles.insert(2, two, 0);
        assert!(!is_ready(&consoles));
        for text in [b"a\n", b"b\n"] {
            write(&to_one, text).unwrap();
            assert!(is_ready(&consoles));
            consoles.take(&mut log, 0);
            assert!(!is_ready(&consoles));
        }
        write(&to_two, b"c\n").unwrap();
        drop(to_one);
        // What is there, and then that it is over.
        for _ in 0..2 {
            consoles.take(&mut log, 0);
        }
        assert!(!is_ready(&consoles));
        assert!(consoles.get(1).unwrap().pipe().is_none());
        // Another takes its place, and one that was taken away is not heard.
        let (next, to_next, _next) = console("next");
        consoles.insert(1, next, 0);
        write(&to_next, b"d\n").unwrap();
        consoles.remove(2);
        write(&to_two, b"nobody hears\n").unwrap();
        consoles.take(&mut log, 0);
        assert!(!is_ready(&consoles));
        assert_eq!(consoles.get(1).unwrap().last_line(), "d");
        drop(log);
        let text = without_stamps(&std::fs::read_to_string(path).unwrap());
        assert_eq!(text, "one: a\none: b\ntwo: c\nnext: d\n");
    }

    #[test]
    fn one_that_floods_is_left_alone_and_others_are_heard() {
        let mut log = Log::start(None).unwrap();
        let mut consoles = Consoles::create().unwrap();
        let (loud, to_loud, _loud) = console("loud");
        let (quiet, to_quiet, _quiet) = console("quiet");
        consoles.insert(1, loud, 0);
        consoles.insert(2, quiet, 0);
        while consoles.deadline_ns(0).is_none() {
            write(&to_loud, &[b'\n', b'x'].repeat(2048)).unwrap();
            consoles.take(&mut log, 0);
        }
        write(&to_loud, b"more\n").unwrap();
        assert!(!is_ready(&consoles));
        write(&to_quiet, b"heard\n").unwrap();
        consoles.take(&mut log, 0);
        assert_eq!(consoles.get(2).unwrap().last_line(), "heard");
        let over = consoles.deadline_ns(0).unwrap();
        consoles.resume(over - 1);
        assert!(!is_ready(&consoles));
        consoles.resume(over);
        assert!(is_ready(&consoles) && consoles.deadline_ns(over).is_none());
    }
}
