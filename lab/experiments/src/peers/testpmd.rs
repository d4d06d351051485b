//! DPDK's packet forwarder, controlled by its command line.

use super::process::{self, ForeignProgram, TIMEOUT};
use anyhow::{Context as _, bail};
use figures::helper::read_some;
use figures::{Failure, interrupt};
use std::io::Write as _;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

/// Packets per burst.
pub const BURST: u32 = 32;
/// Number of bursts, and of frames, that a guest has in flight.
pub(super) const BURSTS: u32 = 24;
pub(super) const FRAMES_IN_FLIGHT: u32 = BURSTS * BURST;
const PROMPT: &str = "testpmd> ";

/// Environment of a testpmd process.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Core.
    pub core: usize,
    /// Folder for its files.
    pub folder: &'a Path,
    /// Name for display.
    pub name: &'static str,
}

/// Ports and forwarding of a testpmd process.
#[derive(Clone, Debug)]
pub struct Forwarding<'a> {
    /// One port, which returns every packet, or two ports, between which packets are forwarded.
    pub ports: &'a [String],
    /// Forwarding mode.
    pub mode: &'a str,
    /// Size of the packets that it generates, bytes.
    pub size: u32,
    /// Further arguments.
    pub more: &'a [String],
}

/// A running testpmd.
#[derive(Debug)]
pub struct Testpmd {
    name: &'static str,
    ports: usize,
    running: ForeignProgram,
    stdin: ChildStdin,
    stdout: ChildStdout,
    output: String,
}

/// Statistics since forwarding started.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forwarded {
    /// Cycles of the time stamp counter per packet, without empty polls.
    pub cycles: f64,
    /// Packets that the other end did not accept.
    pub dropped: f64,
}

impl Testpmd {
    /// Starts testpmd.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub fn start(place: Site<'_>, forwarding: &Forwarding<'_>) -> anyhow::Result<Self> {
        let Forwarding {
            ports,
            mode,
            size,
            more,
        } = forwarding;
        let topology = match ports.len() {
            1 => "loop",
            _ => "paired",
        };
        let core = place.core;
        let mut command = process::killed_with_parent("stdbuf");
        // Without this, output to a pipe would be buffered by page.
        command
            .args(["-oL", "dpdk-testpmd"])
            .env("RUNTIME_DIRECTORY", place.folder)
            .args(environment(core))
            .args(ports.iter().map(|port| format!("--vdev={port}")))
            .args(["--", "-i", "--nb-cores=1"])
            .arg(format!("--port-topology={topology}"))
            .arg(format!("--forward-mode={mode}"))
            .args(["--rxd=1024", "--txd=1024", "--total-num-mbufs=16384"])
            .arg("--record-core-cycles")
            .arg(format!("--burst={BURST}"))
            .arg(format!("--txpkts={size}"))
            .args(*more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut running = ForeignProgram::start(&mut command)?;
        let stdin = running.0.stdin.take().context("no pipe")?;
        let stdout = running.0.stdout.take().context("no pipe")?;
        let mut this = Self {
            name: place.name,
            ports: ports.len(),
            running,
            stdin,
            stdout,
            output: String::new(),
        };
        this.answer()?;
        Ok(this)
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Waits until its ports are connected.
    ///
    /// # Errors
    /// Returns an error if the wait times out.
    pub fn wait_for_link(&mut self) -> anyhow::Result<()> {
        for port in 0..self.ports {
            let ask = format!("show port info {port}");
            process::wait("testpmd's port", || {
                Ok(self.command(&ask)?.contains("Link status: up"))
            })?;
        }
        Ok(())
    }

    /// Starts forwarding, after sending `bursts` generated bursts.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn forward(&mut self, bursts: Option<u32>) -> anyhow::Result<()> {
        match bursts {
            Some(bursts) => self.command(&format!("start tx_first {bursts}")),
            None => self.command("start"),
        }
        .map(drop)
    }

    /// Returns the packets per second that all ports received since the last call, by testpmd's
    /// clock.
    ///
    /// # Errors
    /// Returns an error if the process has exited, or prints no rate.
    pub fn rate(&mut self) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for port in 0..self.ports {
            let output = self.command(&format!("show port stats {port}"))?;
            let rate = number_after(&output, "Rx-pps:");
            sum += rate.with_context(|| format!("{}: no rate", self.name))?;
        }
        Ok(sum)
    }

    /// Returns the statistics since forwarding started.
    ///
    /// # Errors
    /// Returns an error if the process has exited or prints no statistics.
    pub fn forwarded(&mut self) -> anyhow::Result<Forwarded> {
        let output = self.command("show fwd stats all")?;
        forwarded(&output).with_context(|| format!("{}: no statistics in `{output}`", self.name))
    }

    fn command(&mut self, line: &str) -> anyhow::Result<String> {
        let name = self.name;
        self.stdin
            .write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("testpmd, {name}: has exited"))?;
        self.answer()
    }

    /// Returns the output up to the next prompt.
    fn answer(&mut self) -> anyhow::Result<String> {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(at) = self.output.rfind(PROMPT)
                && self.output.get(at + PROMPT.len()..) == Some("")
            {
                let mut output = std::mem::take(&mut self.output);
                output.truncate(at);
                return Ok(output);
            }
            interrupt::check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!(Failure::Failed(format!(
                    "testpmd, {}: unexpected output instead of an answer: `{}`",
                    self.name,
                    self.output.trim()
                )));
            }
            let mut bytes = Vec::new();
            if read_some(&mut self.stdout, left, &mut bytes)? == Some(0) {
                bail!(Failure::Failed(format!(
                    "testpmd, {}: has exited: `{}`",
                    self.name,
                    self.output.trim()
                )));
            }
            self.output.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
}

/// Returns the arguments for DPDK's environment in every program of a run: two threads on one core,
/// one of which polls, and memory that is freed with the process.
pub(super) fn environment(core: usize) -> Vec<String> {
    let threads = format!("--lcores=0@{core},1@{core}");
    let memory = ["--in-memory", "--single-file-segments", "-m", "256"];
    let quiet = ["--no-pci", "--no-telemetry", "--log-level=4"];
    let rest = memory.into_iter().chain(quiet).map(str::to_owned);
    std::iter::once(threads).chain(rest).collect()
}

fn forwarded(output: &str) -> Option<Forwarded> {
    let totals = output.split("Accumulated forward statistics").nth(1)?;
    Some(Forwarded {
        cycles: number_after(totals, "CPU cycles/packet=")?,
        dropped: number_after(totals, "TX-dropped:")?,
    })
}

/// Returns the number after the last occurrence of `words`.
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

    const OUTPUT: &str = "\
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
        assert_eq!(forwarded(OUTPUT), Some(known));
        assert_eq!(forwarded(&OUTPUT.replace("164.25", "INF")), None);
        assert_eq!(forwarded("nothing"), None);
    }

    #[test]
    fn a_rate_is_the_number_after_its_name() {
        let output = "  Rx-pps:     15123456          Rx-bps:   7743209472\n";
        assert_eq!(number_after(output, "Rx-pps:"), Some(15_123_456.0));
        assert_eq!(number_after(output, "Tx-pps:"), None);
    }
}
