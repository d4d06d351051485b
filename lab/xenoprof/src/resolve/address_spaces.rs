//! Address spaces: the code mapped into each process.

use crate::host::process::CodeMapping;
use std::collections::{BTreeMap, HashMap};

/// Location of code: a module, and an offset in its file or an address in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) module: u32,
    pub(super) offset: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mapped {
    end: u64,
    start_in_file: u64,
    module: u32,
}

/// Mappings of each process by start address.
#[derive(Debug, Default)]
pub(super) struct Spaces(HashMap<u32, BTreeMap<u64, Mapped>>);

impl Spaces {
    /// Adds a mapping, and removes those that start within it.
    pub(super) fn map(&mut self, pid: u32, mapping: &CodeMapping, module: u32) {
        let end = mapping.start.saturating_add(mapping.len);
        let space = self.0.entry(pid).or_default();
        let replaced: Vec<u64> = space
            .range(mapping.start..end)
            .map(|(start, _)| *start)
            .collect();
        for start in replaced {
            space.remove(&start);
        }
        space.insert(
            mapping.start,
            Mapped {
                end,
                start_in_file: mapping.offset,
                module,
            },
        );
    }

    /// Copies the parent's mappings to a child.
    pub(super) fn fork(&mut self, parent: u32, child: u32) {
        if let Some(space) = self.0.get(&parent).cloned() {
            self.0.insert(child, space);
        }
    }

    /// Removes all mappings after an exec.
    pub(super) fn exec(&mut self, pid: u32) {
        self.0.remove(&pid);
    }

    pub(super) fn find(&self, pid: u32, address: u64) -> Option<Place> {
        let (start, mapped) = self.0.get(&pid)?.range(..=address).next_back()?;
        (address < mapped.end).then(|| Place {
            module: mapped.module,
            offset: mapped.start_in_file.wrapping_add(address - start),
        })
    }
}
