//! Machines without a wire, for a file that one guest sends to another without copying.

use super::cores::Cores;
use super::frame_run::FrameWindow;
use super::ledgers;
use super::path::Path as _;
use super::running::{Running, unique_name};
use super::window::per_packet;
use crate::plan::Times;
use anyhow::{Context as _, bail};
use config::domain::{GrantMode, StackApp, StackConfig};
use config::{Config, Endpoint, GuestSection, Vif};
use figures::measure::{CpuTimes, HostCpuTimes};
use figures::metric::SEGMENT_BYTES;
use figures::{Failure, interrupt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const PORT: u16 = 5201;
const SENDER: &str = "from";

/// A file in a guest's memory, which the guest's TCP/IP station repeatedly sends to the station of
/// another guest. Its pages are outside the pool and are granted as in Ram's thesis (4.4.1).
#[derive(Clone, Copy, Debug)]
pub struct FileRun {
    /// Grant mechanism.
    pub grants: GrantMode,
    /// File size, KB.
    pub kb: u32,
    /// Cores: the driver runs on the guest's core, the guests on the wire's.
    pub cores: Cores,
}

/// Counters of the sender.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// Acknowledged bytes.
    bytes: f64,
    /// Number of uses of pages that were already granted.
    reused: f64,
    /// Number of new grants of pages.
    anew: f64,
    /// Copied frames.
    copied: f64,
    /// Number of the file's pages that are currently granted.
    granted: f64,
}

impl FileRun {
    /// Starts a machine, warms it up, measures a window and stops it.
    ///
    /// # Errors
    /// Returns an error if the machine does not start, or sends nothing.
    pub fn measure(&self, times: Times, tsc_hz: u64) -> anyhow::Result<FrameWindow> {
        let mut running = Running::start(&self.config()?)?;
        let end = Instant::now() + Duration::from_secs(30);
        while sent(&running)?.bytes == 0.0 {
            if Instant::now() > end {
                bail!(Failure::Failed(
                    "the receiver receives no byte of the file".to_owned()
                ));
            }
            interrupt::sleep(Duration::from_millis(20))?;
        }
        let window = self.open(&mut running, times, tsc_hz)?;
        running.down()?;
        Ok(window)
    }

    fn open(
        &self,
        running: &mut Running,
        times: Times,
        tsc_hz: u64,
    ) -> anyhow::Result<FrameWindow> {
        interrupt::sleep(times.warm_up)?;
        let cpus = HostCpuTimes::read();
        let cpu = CpuTimes::read(running.processes());
        let path = running.reading()?;
        let (before, start) = (sent(running)?, Instant::now());
        interrupt::sleep(times.window)?;
        let (after, seconds) = (sent(running)?, start.elapsed().as_secs_f64());
        let path = running.reading()?.since(&path);
        let used = CpuTimes::read(running.processes()).since(&cpu);
        let disturbed = HostCpuTimes::read().disturbed_since(cpus);
        let mut figures = pages(before, after, self.kb);
        let bytes = after.bytes - before.bytes;
        figures.insert("throughput".to_owned(), bytes * 8.0 / seconds / 1e9);
        let cycles = |(part, ns): (&_, &u64)| (*part, *ns as f64 * tsc_hz as f64 / 1e9);
        let cycles = used.iter().map(cycles).collect();
        per_packet(&cycles, bytes / SEGMENT_BYTES, &mut figures);
        ledgers::account(&path, bytes / SEGMENT_BYTES, &mut figures);
        Ok(FrameWindow {
            figures,
            conditions: format!(
                "a file of {} KB in the guest's memory, sent to another guest; up to {} pages \
                 granted at once; its stack moves as many dummy bytes",
                self.kb,
                config::domain::FILE_GRANTS
            ),
            disturbed,
        })
    }

    fn config(&self) -> anyhow::Result<Config> {
        let guest = |name: &str, address: &str, app| -> anyhow::Result<GuestSection> {
            let station = StackConfig {
                addresses: vec![address.parse().map_err(anyhow::Error::msg)?],
                gateway: None,
                apps: vec![app],
            };
            Ok(GuestSection {
                name: name.to_owned(),
                cpus: vec![self.cores.wire],
                vifs: vec![Vif::new(Endpoint::Stack { station })],
                ..GuestSection::default()
            })
        };
        let source = StackApp::TcpSource {
            to: ([10, 0, 0, 2], PORT).into(),
            seconds: 1_000_000,
            after_s: 0,
            file_kb: Some(self.kb),
        };
        let mut config = Config {
            name: unique_name("file"),
            guests: vec![
                guest(SENDER, "10.0.0.1/24", source)?,
                guest("to", "10.0.0.2/24", StackApp::TcpSink { port: PORT })?,
            ],
            ..Config::default()
        };
        config.driver.cpus = vec![self.cores.guest];
        config.driver.grants = self.grants;
        config.driver.restart = false;
        Ok(config)
    }
}

/// Reads the sender's counters.
fn sent(running: &Running) -> anyhow::Result<Sent> {
    let stat = running.stat(SENDER)?;
    let vif = &stat["vifs"]["0"];
    let number = |value: &Value, name: &str| {
        let found = value[name].as_f64();
        found.with_context(|| format!("the guest reports no `{name}`"))
    };
    let file = &vif["file"];
    Ok(Sent {
        bytes: number(&vif["endpoint"], "app.0.bytes")?,
        reused: number(file, "reused")?,
        anew: number(file, "granted_anew")?,
        copied: number(file, "copied")?,
        granted: number(file, "granted")?,
    })
}

/// Returns the figures of a file's pages per packet of a full segment, and the packets per distinct
/// page used.
fn pages(before: Sent, after: Sent, kb: u32) -> BTreeMap<String, f64> {
    let packets = (after.bytes - before.bytes) / SEGMENT_BYTES;
    let (anew, reused) = (after.anew - before.anew, after.reused - before.reused);
    // The file is sent cyclically, so a page is used again only after all others were used.
    let used = (before.granted + anew).min(f64::from(kb) / 4.0);
    let mut figures = BTreeMap::from([
        ("file_copied".to_owned(), after.copied - before.copied),
        ("packets_per_page_used".to_owned(), packets / used.max(1.0)),
    ]);
    if packets > 0.0 {
        figures.insert("granted_anew".to_owned(), anew / packets);
    }
    if anew + reused > 0.0 {
        figures.insert("hit_rate".to_owned(), reused / (anew + reused));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_of_files_are_valid() {
        for grants in [GrantMode::Counted, GrantMode::Map] {
            for kb in [4, 64, 16_384] {
                let run = FileRun {
                    grants,
                    kb,
                    cores: Cores { wire: 0, guest: 1 },
                };
                run.config().unwrap().machine().unwrap();
            }
        }
    }

    #[test]
    fn pages_are_counted_by_packets() {
        let before = Sent {
            bytes: 1448.0,
            granted: 16.0,
            anew: 16.0,
            ..Sent::default()
        };
        let after = Sent {
            bytes: 1448.0 * 1001.0,
            reused: 300.0,
            anew: 116.0,
            ..before
        };
        let seen = pages(before, after, 1024);
        assert_eq!(seen["granted_anew"], 0.1);
        assert_eq!(seen["hit_rate"], 0.75);
        assert_eq!(seen["packets_per_page_used"], 1000.0 / 116.0);
        assert_eq!(seen["file_copied"], 0.0);
        // All 64 pages were used, some of them after a new grant.
        assert_eq!(
            pages(before, after, 256)["packets_per_page_used"],
            1000.0 / 64.0
        );
        let nothing = pages(before, before, 1024);
        assert!(!nothing.contains_key("hit_rate") && nothing["packets_per_page_used"] == 0.0);
    }
}
