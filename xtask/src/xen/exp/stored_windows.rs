//! Stores windows for later runs. Each measurement appends a line of JSON.

use anyhow::{Context, Result, ensure};
use figures::metric::SEGMENT_BYTES;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Bytes of headers in a frame of a TCP stream with timestamps.
const HEADER_BYTES: u64 = 66;

/// Totals by name.
pub(super) type ByName = BTreeMap<String, u64>;

/// The results of a measurement window, as `xen-window` prints them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Window {
    #[serde(default)]
    pub(super) round: u32,
    /// Column, wire, direction and guests.
    pub(super) cell: String,
    /// The window's length in instructions, including those that the machine would have executed
    /// while idle.
    ticks: u64,
    /// Frames on the wire. A large segment counts as one.
    frames: u64,
    bytes: u64,
    /// Segments of [`SEGMENT_BYTES`] that receiving guests have acknowledged. They count instead of
    /// frames, because frames on the wire may be lost.
    acknowledged: Option<u64>,
    /// Retransmitted segments.
    again: u64,
    /// Ticks by domain, including `idle`.
    ran: ByName,
    /// Hypercalls, by domain and kind.
    calls: BTreeMap<String, ByName>,
    /// Operations of the grant hypercalls, by domain and kind.
    operations: BTreeMap<String, ByName>,
}

impl Window {
    /// Parses the machine's output.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not a window, or the window received nothing.
    pub(super) fn read(round: u32, json: &str) -> Result<Self> {
        let window: Self = serde_json::from_str(json).with_context(|| json.to_owned())?;
        ensure!(
            window.packets() > 0.0,
            "the window received nothing: {json}"
        );
        Ok(Self { round, ..window })
    }

    /// Returns the number of 1514-byte packets that would have carried the received data.
    pub(super) fn packets(&self) -> f64 {
        if let Some(acknowledged) = self.acknowledged {
            return acknowledged as f64;
        }
        let payload = self.bytes.saturating_sub(self.frames * HEADER_BYTES);
        payload as f64 / SEGMENT_BYTES
    }

    /// Returns the share of packets that were retransmitted.
    pub(super) fn loss(&self) -> f64 {
        self.again as f64 / self.packets()
    }

    /// Returns gigabits per second of emulated time, of which a second has 10⁹ instructions.
    pub(super) fn throughput(&self) -> f64 {
        self.packets() * SEGMENT_BYTES * 8.0 / self.ticks as f64
    }

    /// Returns the instructions per packet of all domains and of Xen.
    pub(super) fn instructions(&self) -> f64 {
        let idle = self.ran.get("idle").copied().unwrap_or(0);
        self.ticks.saturating_sub(idle) as f64 / self.packets()
    }

    /// Returns the hypercalls per packet of all domains. `counts` selects the kinds of hypercalls.
    pub(super) fn calls(&self, counts: impl Fn(&str) -> bool) -> f64 {
        self.of(&self.calls, counts)
    }

    /// Returns grant operations per packet.
    pub(super) fn operations(&self) -> f64 {
        self.of(&self.operations, |_| true)
    }

    fn of(&self, sums: &BTreeMap<String, ByName>, counts: impl Fn(&str) -> bool) -> f64 {
        let all = sums.values().flatten();
        let counted = all.filter(|(name, _)| counts(name)).map(|(_, sum)| *sum);
        counted.sum::<u64>() as f64 / self.packets()
    }
}

/// The stored windows of one machine and one plan.
#[derive(Debug)]
pub(super) struct StoredWindows {
    file: PathBuf,
    pub(super) windows: Vec<Window>,
}

impl StoredWindows {
    /// Reads the windows of the machine described by `tested_inputs`. `fresh`: discards them.
    pub(super) fn open(home: &Path, tested_inputs: &[Vec<u8>], fresh: bool) -> Result<Self> {
        let mut hasher = DefaultHasher::new();
        tested_inputs.hash(&mut hasher);
        let file = home.join(format!("exp-{:016x}.jsonl", hasher.finish()));
        if fresh && file.exists() {
            fs::remove_file(&file)?;
        }
        Ok(Self::of(file))
    }

    /// Reads the windows of the machine that was measured most recently.
    pub(super) fn newest(home: &Path) -> Result<Self> {
        let entries = fs::read_dir(home).with_context(|| home.display().to_string())?;
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let changed = |path: &PathBuf| fs::metadata(path).and_then(|file| file.modified()).ok();
        let newest = files.filter(|path| is_of_windows(path)).max_by_key(changed);
        Ok(Self::of(newest.context("no window was measured yet")?))
    }

    fn of(file: PathBuf) -> Self {
        let text = fs::read_to_string(&file).unwrap_or_default();
        // An incomplete line of an interrupted run is ignored.
        let windows = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        Self { file, windows }
    }

    /// Adds a window and appends it to the file.
    pub(super) fn add(&mut self, window: Window) -> Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file)?;
        // The text begins with a newline, because the last line may be incomplete.
        write!(file, "\n{}\n", serde_json::to_string(&window)?)?;
        self.windows.push(window);
        Ok(())
    }

    pub(super) fn has(&self, round: u32, cell: &str) -> bool {
        let mut windows = self.windows.iter();
        windows.any(|window| window.round == round && window.cell == cell)
    }

    /// Ignores windows of other columns until the next run.
    pub(super) fn only(&mut self, columns: &[&str]) {
        let of = |window: &Window| window.cell.split('.').next().map(str::to_owned);
        self.windows
            .retain(|window| of(window).is_some_and(|column| columns.contains(&column.as_str())));
    }
}

/// Returns whether a file contains windows.
fn is_of_windows(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("exp-") && name.ends_with(".jsonl")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a window with a thousand packets of 1514 bytes, of which ten were retransmitted, and
    /// with `calls` hypercalls per packet.
    pub(in super::super) fn line(cell: &str, calls: u64) -> String {
        format!(
            "{{\"cell\":\"{cell}\",\"ticks\":5000000,\"frames\":1000,\"bytes\":1514000,\
             \"acknowledged\":null,\"again\":10,\
             \"ran\":{{\"0\":3000000,\"1\":1000000,\"idle\":1000000}},\
             \"calls\":{{\"0\":{{\"grant_copy\":{},\"iret\":500}},\
             \"1\":{{\"event_channel_op\":250}}}},\
             \"operations\":{{\"0\":{{\"grant_copy\":3000}}}}}}",
            1000 * calls
        )
    }

    #[test]
    fn figures_are_per_packet() {
        let window = Window::read(2, &line("netback.large.r1", 2)).unwrap();
        assert_eq!(window.round, 2);
        assert_eq!(window.packets(), 1000.0);
        assert_eq!(window.instructions(), 4000.0);
        assert_eq!(window.throughput(), 1448.0 * 8000.0 / 5e6);
        assert_eq!(window.calls(|_| true), 2.75);
        assert_eq!(window.calls(|name| name == "event_channel_op"), 0.25);
        assert_eq!(window.operations(), 3.0);
        assert_eq!(window.loss(), 0.01);
    }

    #[test]
    fn unreceived_segments_do_not_count() {
        let some = line("netback.large.r1", 2).replace("null", "800");
        let window = Window::read(0, &some).unwrap();
        assert_eq!(window.packets(), 800.0);
        assert_eq!(window.instructions(), 5000.0);
        let none = line("netback.large.r1", 2).replace("null", "0");
        let why = Window::read(0, &none).unwrap_err().to_string();
        assert!(why.starts_with("the window received nothing"), "{why}");
    }

    #[test]
    fn windows_belong_to_their_machine() {
        let folder = tempfile::tempdir().unwrap();
        let open = |parts: [&str; 2]| {
            let tested_inputs = parts.map(|part| part.as_bytes().to_vec());
            StoredWindows::open(folder.path(), &tested_inputs, false).unwrap()
        };
        let window = Window::read(0, &line("netback.large.r1", 1)).unwrap();
        open(["image", "xen"]).add(window).unwrap();
        assert_eq!(open(["image", "xen"]).windows.len(), 1);
        for other in [["image", "emulator"], ["imagex", "en"], ["xen", "image"]] {
            assert!(open(other).windows.is_empty(), "{other:?}");
        }
    }

    #[test]
    fn a_window_without_packets_is_rejected() {
        let silent = line("netback.large.r1", 2).replace("1514000", "42");
        let why = Window::read(0, &silent).unwrap_err().to_string();
        assert!(why.starts_with("the window received nothing"), "{why}");
        assert!(Window::read(0, "{\"cell\":3}").is_err());
    }

    #[test]
    fn interrupted_lines_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let tested_inputs = [b"x".to_vec()];
        let mut kept = StoredWindows::open(folder.path(), &tested_inputs, false).unwrap();
        let of = |cell: &str| Window::read(0, &line(cell, 1)).unwrap();
        kept.add(of("netback.large.r1")).unwrap();
        fs::write(
            &kept.file,
            fs::read_to_string(&kept.file).unwrap() + "{\"cell\":\"net",
        )
        .unwrap();
        kept.add(of("grantway-copy.large.r1")).unwrap();
        let mut again = StoredWindows::newest(folder.path()).unwrap();
        assert_eq!(again.windows, kept.windows);
        again.only(&["netback"]);
        assert_eq!(again.windows, [of("netback.large.r1")]);
        let fresh = StoredWindows::open(folder.path(), &tested_inputs, true).unwrap();
        assert!(fresh.windows.is_empty());
    }
}
