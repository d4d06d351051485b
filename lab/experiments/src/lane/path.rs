//! What lies between the two ends of a lane, and its account of itself.

use super::reading::{Reading, digest};
use super::running::{RIVALS, Running};
use figures::measure::Part;

/// What lies between the two ends of a lane.
pub trait Path {
    /// Its processes and kernel threads, by the part that they are charged to.
    fn parts(&self) -> Vec<(Part, Vec<i32>)>;

    /// What it knows about itself just now: counters that only grow.
    ///
    /// # Errors
    /// If it has gone.
    fn reading(&mut self) -> anyhow::Result<Reading>;

    /// The machine, if it is one.
    fn machine(&self) -> Option<&Running> {
        None
    }
}

impl Path for Running {
    fn parts(&self) -> Vec<(Part, Vec<i32>)> {
        self.processes().to_vec()
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        let mut reading = Reading::default();
        // What rivals merge and drop is no figure of the guest that is measured.
        for (part, name) in self.domains().iter().filter(|(part, _)| *part != RIVALS) {
            digest(part, &self.stat(name)?, &mut reading);
        }
        Ok(reading)
    }

    fn machine(&self) -> Option<&Running> {
        Some(self)
    }
}
