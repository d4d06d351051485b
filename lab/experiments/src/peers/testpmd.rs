//! DPDK's packet forwarder, driven by its command line.

use super::process::{self, ForeignProgram, PATIENCE};
use anyhow::{Context as _, bail};
use figures::helper::read_some;
use figures::{Failure, interrupt};
use std::io::Write as _;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

/// Packets that it takes at a time.
pub const BURST: u32 = 32;
const PROMPT: &str = "testpmd> ";

/// Where one runs.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Its core.
    pub core: usize,
    /// Where it may leave files.
    pub folder: &'a Path,
    /// Its name, for people.
    pub name: &'static str,
}

/// A running one, with one port, from which packets go back by the port.
#[derive(Debug)]
pub struct Testpmd {
    name: &'static str,
    running: ForeignProgram,
    stdin: ChildStdin,
    stdout: ChildStdout,
    said: String,
}

/// What it has forwarded since it began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forwarded {
    /// Cycles of the time stamp counter for a packet, looks in vain left out.
    pub cycles: f64,
    /// Packets that the other end did not take.
    pub dropped: f64,
}

impl Testpmd {
    /// Starts it with port `vdev`, in forwarding mode `mode`; its own packets have `size` bytes.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(place: Site<'_>, vdev: &str, mode: &str, size: u32) -> anyhow::Result<Self> {
        let core = place.core;
        let mut command = process::mortal("stdbuf");
        // Into a pipe it would speak only when it has a page full.
        command
            .args(["-oL", "dpdk-testpmd"])
            .env("RUNTIME_DIRECTORY", place.folder)
            .args(environment(core))
            .arg(format!("--vdev={vdev}"))
            .args(["--", "-i", "--nb-cores=1", "--port-topology=loop"])
            .arg(format!("--forward-mode={mode}"))
            .args(["--rxd=1024", "--txd=1024", "--total-num-mbufs=16384"])
            .arg("--record-core-cycles")
            .arg(format!("--burst={BURST}"))
            .arg(format!("--txpkts={size}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut running = ForeignProgram::start(&mut command)?;
        let stdin = running.0.stdin.take().context("no pipe")?;
        let stdout = running.0.stdout.take().context("no pipe")?;
        let mut this = Self {
            name: place.name,
            running,
            stdin,
            stdout,
            said: String::new(),
        };
        this.answer()?;
        Ok(this)
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Waits until its port is connected.
    ///
    /// # Errors
    /// If that does not happen in time.
    pub fn wait_for_link(&mut self) -> anyhow::Result<()> {
        process::wait("testpmd's port", || {
            Ok(self
                .command("show port info 0")?
                .contains("Link status: up"))
        })
    }

    /// Forwards from now on; if `bursts`, so many of its own making come first.
    ///
    /// # Errors
    /// If it has gone.
    pub fn forward(&mut self, bursts: Option<u32>) -> anyhow::Result<()> {
        match bursts {
            Some(bursts) => self.command(&format!("start tx_first {bursts}")),
            None => self.command("start"),
        }
        .map(drop)
    }

    /// Packets a second that came in since this was asked last, by its own clock.
    ///
    /// # Errors
    /// If it has gone, or says none.
    pub fn rate(&mut self) -> anyhow::Result<f64> {
        let said = self.command("show port stats 0")?;
        number_after(&said, "Rx-pps:").with_context(|| format!("{}: no rate", self.name))
    }

    /// What it has forwarded since it began.
    ///
    /// # Errors
    /// If it has gone, or says nothing.
    pub fn forwarded(&mut self) -> anyhow::Result<Forwarded> {
        let said = self.command("show fwd stats all")?;
        forwarded(&said).with_context(|| format!("{}: no statistics in `{said}`", self.name))
    }

    fn command(&mut self, line: &str) -> anyhow::Result<String> {
        let name = self.name;
        self.stdin
            .write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("testpmd, {name}: it has gone"))?;
        self.answer()
    }

    /// What it says until it is ready for another command.
    fn answer(&mut self) -> anyhow::Result<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.said.rfind(PROMPT)
                && self.said.get(at + PROMPT.len()..) == Some("")
            {
                let mut said = std::mem::take(&mut self.said);
                said.truncate(at);
                return Ok(said);
            }
            interrupt::check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(Failure::Failed(format!(
                    "testpmd, {}: no answer, but `{}`",
                    self.name,
                    self.said.trim()
                )));
            }
            let mut bytes = Vec::new();
            if read_some(&mut self.stdout, left, &mut bytes)? == Some(0) {
                bail!(Failure::Failed(format!(
                    "testpmd, {}: it ended: `{}`",
                    self.name,
                    self.said.trim()
                )));
            }
            self.said.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
}

/// Returns the arguments that DPDK's environment takes in every program of a run: two threads on
/// one core, one of which polls, and memory that ends with them.
pub(super) fn environment(core: usize) -> Vec<String> {
    let threads = format!("--lcores=0@{core},1@{core}");
    let memory = ["--in-memory", "--single-file-segments", "-m", "256"];
    let quiet = ["--no-pci", "--no-telemetry", "--log-level=4"];
    let rest = memory.into_iter().chain(quiet).map(str::to_owned);
    std::iter::once(threads).chain(rest).collect()
}

fn forwarded(said: &str) -> Option<Forwarded> {
    let totals = said.split("Accumulated forward statistics").nth(1)?;
    Some(Forwarded {
        cycles: number_after(totals, "CPU cycles/packet=")?,
        dropped: number_after(totals, "TX-dropped:")?,
    })
}

/// The number that follows the last `words`.
pub(super) fn number_after(text: &str, words: &str) -> Option<f64> {
    let (_, rest) = text.rsplit_once(words)?;
    let rest = rest.trim_start();
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
  ---------------------- Forward statistics for port 0  ----------------------
  RX-packets: 1057920        RX-dropped: 0             RX-total: 1057920
  TX-packets: 1057910        TX-dropped: 10            TX-total: 1057920
  ----------------------------------------------------------------------------

  +++++++++++++++ Accumulated forward statistics for all ports+++++++++++++++
  RX-packets: 1057920        RX-dropped: 0             RX-total: 1057920
  TX-packets: 1057910        TX-dropped: 10            TX-total: 1057920
  ++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++

  CPU cycles/packet=164.25 (total cycles=173763360 / total macswap packets=1057920) at 2300 MHz \
Clock
";

    #[test]
    fn statistics_are_read_as_testpmd_prints_them() {
        let known = Forwarded {
            cycles: 164.25,
            dropped: 10.0,
        };
        assert_eq!(forwarded(SAID), Some(known));
        assert_eq!(forwarded(&SAID.replace("164.25", "INF")), None);
        assert_eq!(forwarded("nothing"), None);
    }

    #[test]
    fn a_rate_is_the_number_behind_its_name() {
        let said = "  Rx-pps:     15123456          Rx-bps:   7743209472\n";
        assert_eq!(number_after(said, "Rx-pps:"), Some(15_123_456.0));
        assert_eq!(number_after(said, "Tx-pps:"), None);
    }
}
