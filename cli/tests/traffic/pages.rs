//! The pages of a domain, with the contents that the domain can read.

use crate::machine::Machine;
use crate::processes::pid;
use std::fs;
use std::os::unix::fs::FileExt;

/// A domain's pages, in its address space.
pub(crate) struct Pages {
    memory: fs::File,
    from: u64,
    bytes: usize,
}

impl Pages {
    /// Returns the pages that the domain owns (`abi::layout::FRAMES`).
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

    /// Returns the pages of the guest with this name.
    pub(crate) fn of_guest(machine: &Machine, name: &str) -> Self {
        Self::of(pid(machine, name))
    }

    /// Reads all pages into `buffer`.
    pub(crate) fn read(&self, buffer: &mut Vec<u8>) {
        buffer.resize(self.bytes, 0);
        self.memory.read_exact_at(buffer, self.from).unwrap();
    }

    /// Returns whether the pages contain `mark`.
    pub(crate) fn contain(&self, mark: &[u8]) -> bool {
        let mut buffer = Vec::new();
        self.read(&mut buffer);
        buffer.windows(mark.len()).any(|window| window == mark)
    }
}
