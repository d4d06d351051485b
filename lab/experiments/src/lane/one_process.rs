//! Guest and driver domain as two threads of one process: the path without isolation.

use super::path::Path;
use super::reading::{Reading, add_stat};
use anyhow::Context as _;
use config::Config;
use figures::Failure;
use figures::helper::LineChild;
use figures::measure::CpuPart;
use std::process::Command;
use std::time::Duration;

/// The value of `grants` in a plan that selects this path.
pub const NAME: &str = "pointers";

const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// The running program `pointers`.
#[derive(Debug)]
pub struct OneProcess {
    child: LineChild,
}

impl OneProcess {
    /// Starts the program with the machine of `config`, which has one guest and no devices.
    ///
    /// # Errors
    /// Returns an error if the program does not exist or rejects the machine.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        let machine = config
            .machine()
            .map_err(|problem| Failure::Failed(problem.to_string()))?;
        let program = client::program_path("pointers")
            .map_err(|error| Failure::CannotRun(error.to_string()))?;
        let mut command = Command::new(program);
        command.arg(serde_json::to_string(&machine)?);
        let child = LineChild::start("pointers", command, REPLY_TIMEOUT)?;
        Ok(Self { child })
    }
}

impl Path for OneProcess {
    /// Returns no parts, because both threads share a process. The ledgers report their CPU time.
    fn parts(&self) -> Vec<(CpuPart, Vec<i32>)> {
        Vec::new()
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        let stat = self.child.request("stat", REPLY_TIMEOUT)?;
        let mut reading = Reading::default();
        for part in ["driver", "guest"] {
            let counters = stat.get(part).context("pointers: no counters")?;
            add_stat(part, counters, &mut reading);
        }
        Ok(reading)
    }
}
