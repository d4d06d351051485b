//! The path between the two ends of a lane, and its counters.

use super::reading::{Reading, add_device_stat, add_stat, add_steal, add_waits};
use super::running::{NIC_DEVICE, Running, is_rival};
use figures::measure::{CpuPart, HostCpuTimes};

/// The path between the two ends of a lane.
pub trait Path {
    /// Returns the path's processes and kernel threads, by the part to which they are charged.
    fn parts(&self) -> Vec<(CpuPart, Vec<i32>)>;

    /// Reads the path's counters, which only grow.
    ///
    /// # Errors
    /// Returns an error if the path has exited.
    fn reading(&mut self) -> anyhow::Result<Reading>;

    /// Returns the machine, if the path is one.
    fn machine(&self) -> Option<&Running> {
        None
    }
}

impl Path for Running {
    fn parts(&self) -> Vec<(CpuPart, Vec<i32>)> {
        self.processes().to_vec()
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        let mut reading = Reading::default();
        // The figures of the measured guest exclude the merges and drops of rivals.
        for (part, name) in self.domains().iter().filter(|(part, _)| !is_rival(part)) {
            add_stat(part, &self.stat(name)?, &mut reading);
            add_waits(part, self.waits(name), &mut reading);
        }
        add_steal(HostCpuTimes::read(), &mut reading);
        for (part, name) in self
            .domains()
            .iter()
            .filter(|(part, _)| *part == NIC_DEVICE)
        {
            add_device_stat(part, &self.stat(name)?, &mut reading);
        }
        Ok(reading)
    }

    fn machine(&self) -> Option<&Running> {
        Some(self)
    }
}
