//! Guest and driver domain as two threads of one process: the path without isolation.

use super::path::Path;
use super::reading::{Reading, digest};
use anyhow::Context as _;
use config::Config;
use figures::Failure;
use figures::helper::LineChild;
use figures::measure::Part;
use std::process::Command;
use std::time::Duration;

/// The grant mechanism that a plan says for it: none.
pub const NAME: &str = "pointers";

const PATIENCE: Duration = Duration::from_secs(30);

/// The running program `pointers`.
#[derive(Debug)]
pub struct OneProcess {
    child: LineChild,
}

impl OneProcess {
    /// Starts it with the machine of `config`, which has one guest and no devices.
    ///
    /// # Errors
    /// If the program is not there or does not take the machine.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        let machine = config
            .machine()
            .map_err(|problem| Failure::Failed(problem.to_string()))?;
        let program = client::program_path("pointers")
            .map_err(|error| Failure::CannotRun(error.to_string()))?;
        let mut command = Command::new(program);
        command.arg(serde_json::to_string(&machine)?);
        let child = LineChild::start("pointers", command, PATIENCE)?;
        Ok(Self { child })
    }
}

impl Path for OneProcess {
    /// Both threads are one process: their CPU time is what their ledgers say.
    fn parts(&self) -> Vec<(Part, Vec<i32>)> {
        Vec::new()
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        let stat = self.child.ask("stat", PATIENCE)?;
        let mut reading = Reading::default();
        for part in ["driver", "guest"] {
            let counters = stat.get(part).context("pointers: no counters")?;
            digest(part, counters, &mut reading);
        }
        Ok(reading)
    }
}
