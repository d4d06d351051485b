//! The pages of a domain, as the domain itself can read them.

use crate::machine::Machine;
use crate::processes::pid;
use std::fs;
use std::os::unix::fs::FileExt;

/// The bytes of a domain's pages.
pub(crate) struct Pages {
    memory: fs::File,
    from: u64,
    bytes: usize,
}

impl Pages {
    /// Returns the domain's own frames (`abi::layout::FRAMES`).
    pub(crate) fn of(pid: u64) -> Self {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let line = maps.lines().find(|line| line.starts_with("5e0000000000-"));
        let range = line.unwrap().split_once(' ').unwrap().0;
        let (from, to) = range.split_once('-').unwrap();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        Self {
            memory: fs::File::open(format!("/proc/{pid}/mem")).unwrap(),
            from: number(from),
            bytes: (number(to) - number(from)) as usize,
        }
    }

    /// Returns a guest's, by its name.
    pub(crate) fn of_guest(machine: &Machine, name: &str) -> Self {
        Self::of(pid(machine, name))
    }

    /// Reads them all into `room`.
    pub(crate) fn read(&self, room: &mut Vec<u8>) {
        room.resize(self.bytes, 0);
        self.memory.read_exact_at(room, self.from).unwrap();
    }

    /// Returns whether they contain `mark`.
    pub(crate) fn hold(&self, mark: &[u8]) -> bool {
        let mut room = Vec::new();
        self.read(&mut room);
        room.windows(mark.len()).any(|window| window == mark)
    }
}
