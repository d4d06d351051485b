//! `grantway capture`: writes the frames of a guest or a NIC to a pcapng file.
//!
//! The driver domain buffers at most a few hundred captured frames. This command fetches them often
//! and writes them to its file. The memory use of both is bounded for any traffic.

use crate::instance_arg::InstanceArg;
use crate::{output, trace};
use abi::mailbox::MailboxRequest;
use anyhow::Context;
use clap::{Args, ValueHint};
use client::Instance;
use config::domain::VifConfig;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tool::{Failure, clean, interrupt};

/// Interval between two requests to the driver domain. At this interval, its buffer suffices for 50
/// 000 small frames or 10 MB per second.
const REQUEST_INTERVAL: Duration = Duration::from_millis(10);
/// Resolution of the times in the file: 10⁻⁹ s.
const NANOSECONDS: u8 = 9;

/// Options of `grantway capture`.
#[derive(Debug, Args)]
pub(crate) struct CaptureOptions {
    /// A NIC, a guest, or one interface of a guest (GUEST-N)
    #[arg(value_name = "GUEST|NIC")]
    of: String,
    /// The file; `-` is standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    write: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// Stop after this many frames [default: unlimited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this many seconds [default: at Ctrl-C]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Write at most this many bytes of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 1600,
          value_parser = clap::value_parser!(u32).range(1..=262_144))]
    snaplen: u32,
    #[command(flatten)]
    instance: InstanceArg,
}

/// Executes `grantway capture`.
pub(crate) fn capture(options: &CaptureOptions, as_json: bool) -> anyhow::Result<()> {
    let instance = Instance::connect(&options.instance.name)?;
    let drivers = drivers(&instance, &options.of)?;
    let to_stdout = options.write.as_os_str() == "-";
    if as_json && to_stdout {
        let text = "--json cannot be combined with a capture on standard output";
        return Err(Failure::Usage(text.to_owned()).into());
    }
    if to_stdout && io::stdout().is_terminal() {
        let text = "standard output is a terminal: pipe the capture, or write -w FILE";
        return Err(Failure::Usage(text.to_owned()).into());
    }
    interrupt::watch();
    let spinner = output::spinner(&format!("capturing {}", options.of));
    let captured = run(&instance, &drivers, options);
    spinner.finish_and_clear();
    let Captured { frames, lost } = captured?;
    if as_json {
        return output::json(&serde_json::json!({ "frames": frames, "lost": lost }));
    }
    let lost = match lost {
        0 => String::new(),
        lost => format!(", {lost} lost: the buffer was full"),
    };
    // Standard output may be the file.
    let _ = writeln!(io::stderr(), "{frames} frames captured{lost}");
    Ok(())
}

/// Returns the workers of the driver domain that have a port of `of`.
pub(crate) fn drivers(instance: &Instance, of: &str) -> anyhow::Result<Vec<String>> {
    let (drivers, _) = trace::drivers_and_guests(instance)?;
    let stat = drivers.first();
    let stat = stat.map(|first| instance.stat(first));
    let stat = stat.transpose()?.unwrap_or_default();
    let ports = stat.get("ports").and_then(Value::as_object);
    let ports: Vec<&str> = ports
        .into_iter()
        .flatten()
        .map(|(name, _)| &**name)
        .collect();
    if ports.iter().any(|port| is_of(port, of)) {
        return Ok(drivers);
    }
    let names = ports.iter().filter_map(|port| port.split_once('.'));
    let names: Vec<&str> = names.map(|(_, name)| name).collect();
    let text = format!("no NIC or guest {of}; choose from: {}", names.join(", "));
    Err(Failure::Usage(clean::line(&text).into_owned()).into())
}

/// Returns whether `port` is the port `of` or an interface of the guest `of`.
fn is_of(port: &str, of: &str) -> bool {
    let Some((kind, name)) = port.split_once('.') else {
        return false;
    };
    name == of || kind == "vif" && VifConfig::guest_of(name) == Some(of)
}

/// Opens the file of `-w`. Without `--force`, rejects a regular file that has contents. Does not
/// truncate a device or a pipe.
fn open(options: &CaptureOptions) -> anyhow::Result<Target> {
    let path = &options.write;
    if path.as_os_str() == "-" {
        let stdout = Box::new(io::stdout().lock());
        return Ok(Target::new("standard output", stdout, None));
    }
    // Captured traffic is private to this user.
    let mut open = OpenOptions::new();
    open.write(true).mode(0o600);
    let there = fs::metadata(path).ok();
    let is_file = there.as_ref().is_none_or(fs::Metadata::is_file);
    let is_empty = there.is_some_and(|there| there.len() == 0);
    match is_file {
        true if options.force || is_empty => open.create(true).truncate(true),
        true => open.create_new(true),
        false => &mut open,
    };
    let file = open.open(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::Usage(format!(
            "{} exists: choose another name with -w, or replace it with --force",
            path.display()
        )),
        _ => Failure::Failed(format!("write {}: {error}", path.display())),
    })?;
    let truncatable = is_file.then(|| file.try_clone()).transpose()?;
    let name = path.display().to_string();
    Ok(Target::new(&name, Box::new(file), truncatable))
}

/// The output of a capture.
struct Target {
    /// The file's name, for errors.
    name: String,
    to: Box<dyn Write>,
    /// A second handle of the file, if the file can be truncated.
    truncatable: Option<fs::File>,
    written: u64,
}

impl Target {
    fn new(name: &str, to: Box<dyn Write>, truncatable: Option<fs::File>) -> Self {
        Self {
            name: name.to_owned(),
            to,
            truncatable,
            written: 0,
        }
    }

    /// Writes blocks that end at `ends`. If a write fails, truncates the file after the last
    /// complete block.
    fn write(&mut self, blocks: &[u8], ends: &[usize]) -> anyhow::Result<()> {
        let mut done = 0;
        let outcome = loop {
            let rest = blocks.get(done..).unwrap_or_default();
            match self.to.write(rest) {
                _ if rest.is_empty() => break self.to.flush(),
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let whole = match outcome {
            Ok(()) => done,
            Err(_) => ends.iter().copied().rfind(|end| *end <= done).unwrap_or(0),
        };
        self.written += whole as u64;
        if let (Err(_), Some(file)) = (&outcome, &self.truncatable) {
            file.set_len(self.written)
                .with_context(|| format!("cut {}", self.name))?;
        }
        outcome.with_context(|| format!("write {}", self.name))
    }
}

/// The result of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Captured {
    frames: u64,
    lost: u64,
}

impl Captured {
    /// Adds the frames that a driver domain reports as lost.
    fn count_lost(&mut self, seen: &Value) {
        let lost = seen["lost"].as_u64().unwrap_or(0);
        self.lost = self.lost.saturating_add(lost);
    }
}

fn run(
    instance: &Instance,
    drivers: &[String],
    options: &CaptureOptions,
) -> anyhow::Result<Captured> {
    // The time is part of the capture's name, because a process in another namespace may have the
    // same id.
    let now = now_ns(ClockId::Monotonic) & 0xffff_ffff;
    let id = u64::from(std::process::id()) << 32 | now;
    let ask = |driver: &str, snaplen| {
        let of = options.of.clone();
        instance.relay(driver, &MailboxRequest::Capture { id, of, snaplen })
    };
    // If this request fails, the capture ends after its timeout.
    let end = |ask: &dyn Fn(&str, u32) -> Result<Value, client::Error>| {
        for driver in drivers {
            let _ = ask(driver, 0);
        }
    };
    // The first answers contain no frames, so the file can be created after every worker has
    // accepted the capture.
    for driver in drivers {
        ask(driver, options.snaplen)?;
    }
    let begun = open(options).and_then(|target| CaptureEncoder::begin(target, options.snaplen));
    let mut written = match begun {
        Ok(written) => written,
        Err(error) => {
            end(&ask);
            return Err(error);
        }
    };
    let end_at = options
        .seconds
        .map(|s| Instant::now() + Duration::from_secs(s.into()));
    let most = options.count.unwrap_or(u64::MAX);
    let mut captured = Captured::default();
    let outcome = loop {
        let is_over = end_at.is_some_and(|at| Instant::now() >= at);
        // A signal is not an error, because Ctrl-C is the usual way to end a capture.
        let stop = interrupt::sleep(REQUEST_INTERVAL).is_err() || is_over;
        let mut frames = Vec::new();
        for driver in drivers {
            let seen = ask(driver, options.snaplen)?;
            captured.count_lost(&seen);
            frames.extend(seen["frames"].as_array().into_iter().flatten().cloned());
        }
        frames.sort_by_key(|frame| frame["at_ns"].as_u64());
        match written.write(&frames, most - captured.frames) {
            Ok(count) => captured.frames += count,
            // The reader has closed the pipe (`| head`).
            Err(error) if is_broken_pipe(&error) => break Ok(()),
            Err(error) => break Err(error),
        }
        if stop || captured.frames >= most {
            break Ok(());
        }
    };
    end(&ask);
    outcome.map(|()| captured)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
    })
}

/// Returns the difference between the time of day and the monotonic clock. Domains report monotonic
/// times.
fn realtime_less_monotonic_ns() -> u64 {
    now_ns(ClockId::Realtime).saturating_sub(now_ns(ClockId::Monotonic))
}

fn now_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Encoder of the capture file.
struct CaptureEncoder {
    /// Blocks that are not written yet.
    writer: PcapNgWriter<Vec<u8>>,
    /// The end of each block.
    ends: Vec<usize>,
    target: Target,
    snaplen: u32,
    /// The interface number of each port, by port name.
    interfaces: BTreeMap<String, u32>,
    ahead_ns: u64,
}

impl CaptureEncoder {
    fn begin(target: Target, snaplen: u32) -> anyhow::Result<Self> {
        let writer = PcapNgWriter::new(Vec::new())?;
        let ends = vec![writer.get_ref().len()];
        Ok(Self {
            writer,
            ends,
            target,
            snaplen,
            interfaces: BTreeMap::new(),
            ahead_ns: realtime_less_monotonic_ns(),
        })
    }

    /// Encodes up to `most` frames from the driver domain's report. Returns the number of encoded
    /// frames.
    fn write(&mut self, frames: &[Value], most: u64) -> anyhow::Result<u64> {
        let mut count = 0;
        for frame in frames {
            if count >= most {
                break;
            }
            let Some(frame) = ReportedFrame::of(frame) else {
                return Err(client::Error::InvalidAnswer("a captured frame".into()).into());
            };
            self.frame(&frame)?;
            count += 1;
        }
        let blocks = std::mem::take(self.writer.get_mut());
        let ends = std::mem::take(&mut self.ends);
        self.target.write(&blocks, &ends)?;
        Ok(count)
    }

    fn frame(&mut self, frame: &ReportedFrame<'_>) -> anyhow::Result<()> {
        let interface_id = self.interface(frame.port)?;
        let mut options = vec![EnhancedPacketOption::Flags(frame.direction())];
        if let Some(why) = frame.dropped {
            options.push(EnhancedPacketOption::Comment(clean::line(why)));
        }
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(frame.at_ns.saturating_add(self.ahead_ns)),
            original_len: frame.len,
            data: Cow::Borrowed(&frame.data),
            options,
        };
        self.writer.write_pcapng_block(block)?;
        self.ends.push(self.writer.get_ref().len());
        Ok(())
    }

    /// Returns the interface number of a port. At the first use of a port, adds its description to
    /// the file.
    fn interface(&mut self, port: &str) -> anyhow::Result<u32> {
        if let Some(number) = self.interfaces.get(port) {
            return Ok(*number);
        }
        let number = self.interfaces.len() as u32;
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: self.snaplen,
            options: vec![
                InterfaceDescriptionOption::IfName(clean::line(port)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        self.writer.write_pcapng_block(block)?;
        self.ends.push(self.writer.get_ref().len());
        self.interfaces.insert(port.to_owned(), number);
        Ok(number)
    }
}

/// A frame as the driver domain reports it.
struct ReportedFrame<'a> {
    at_ns: u64,
    port: &'a str,
    came_in: bool,
    len: u32,
    data: Vec<u8>,
    dropped: Option<&'a str>,
}

impl<'a> ReportedFrame<'a> {
    fn of(value: &'a Value) -> Option<Self> {
        let len = u32::try_from(value.get("bytes")?.as_u64()?).ok()?;
        let data = bytes(value.get("data")?.as_str()?)?;
        (data.len() <= len as usize).then_some(Self {
            at_ns: value.get("at_ns")?.as_u64()?,
            port: value.get("port")?.as_str()?,
            came_in: value.get("in")?.as_bool()?,
            len,
            data,
            dropped: value.get("dropped")?.as_str(),
        })
    }

    /// Returns the direction in pcapng's terms, as seen from the owner of the interface, which is
    /// the bridge.
    const fn direction(&self) -> u32 {
        if self.came_in { 1 } else { 2 }
    }
}

/// Decodes hexadecimal bytes.
fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = hex.chars().map(|c| c.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    let pairs = digits.chunks_exact(2);
    Some(
        pairs
            .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_are_named_after_nics_and_guests() {
        assert!(
            is_of("nic.wire", "wire") && is_of("vif.web-0", "web") && is_of("vif.a-b-1", "a-b")
        );
        assert!(is_of("vif.web-0", "web-0") && !is_of("vif.web-0", "we") && !is_of("nic.w-0", "w"));
        assert!(!is_of("nonsense", "") && !is_of("vif.a-b-1", "a"));
    }

    #[test]
    fn counts_of_lost_frames_saturate() {
        let mut captured = Captured::default();
        for seen in [
            json!({"lost": 1}),
            json!({"lost": -1}),
            json!({"lost": u64::MAX}),
        ] {
            captured.count_lost(&seen);
        }
        assert_eq!(captured.lost, u64::MAX);
    }

    /// A disk with space for a number of bytes.
    struct Disk(fs::File, usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.1);
            if taken == 0 && !bytes.is_empty() {
                return Err(ErrorKind::StorageFull.into());
            }
            self.1 -= taken;
            self.0.write(bytes.get(..taken).unwrap_or_default())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_on_a_full_disk_ends_with_a_whole_frame() {
        let frame = json!({"at_ns": 1, "port": "nic.w", "in": true, "bytes": 40,
                           "data": "0a".repeat(40), "dropped": null});
        let written = |room| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            let disk = Disk(file.reopen().unwrap(), room);
            let target = Target::new("the.pcapng", Box::new(disk), file.reopen().ok());
            let mut capture = CaptureEncoder::begin(target, 100).unwrap();
            let frames = [frame.clone(), frame.clone(), frame.clone()];
            // The second batch fills the disk.
            let done = [&frames[..1], &frames[1..]].map(|some| capture.write(some, 9));
            let why = done.into_iter().find_map(Result::err);
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut file, &mut bytes).unwrap();
            (bytes, why.map(|why| format!("{why:#}")))
        };
        let (all, why) = written(usize::MAX);
        assert_eq!(why, None);
        for room in 0..all.len() {
            let (bytes, why) = written(room);
            assert!(why.unwrap().starts_with("write the.pcapng: "));
            // The size is only bounded, because the times in the file, and thus their text, differ
            // from run to run.
            assert!(bytes.len() <= room);
            let mut rest = &bytes[..];
            while let Some(length) = rest.get(4..8) {
                let length = u32::from_ne_bytes(length.try_into().unwrap());
                rest = rest.get(length as usize..).expect("a block is cut");
            }
            assert!(rest.is_empty(), "{room}: a block is cut");
        }
    }

    #[test]
    fn only_force_replaces_a_file_with_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.pcapng");
        let options = |force| CaptureOptions {
            of: "web".to_owned(),
            write: path.clone(),
            force,
            count: None,
            seconds: None,
            snaplen: 100,
            instance: InstanceArg {
                name: String::new(),
            },
        };
        assert!(open(&options(false)).is_ok());
        assert!(open(&options(false)).is_ok(), "it is empty");
        fs::write(&path, "a capture").unwrap();
        let refused = open(&options(false)).err().unwrap();
        assert!(matches!(refused.downcast_ref(), Some(Failure::Usage(_))));
        let expected = format!("{} exists: choose another", path.display());
        assert!(refused.to_string().starts_with(&expected), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"a capture");
        assert!(open(&options(true)).is_ok());
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    /// Checks that each report of a driver domain yields a valid file or an error.
    #[test]
    fn invalid_frames_from_a_driver_are_rejected() {
        let good = json!({"at_ns": 1, "port": "nic.w", "in": true, "bytes": 3, "data": "0aff",
                          "dropped": null});
        assert_eq!(ReportedFrame::of(&good).unwrap().data, [10, 255]);
        for (key, value) in [
            ("at_ns", json!(-1)),
            ("port", json!(7)),
            ("in", Value::Null),
            ("bytes", json!(1)),
            ("bytes", json!(u64::MAX)),
            ("data", json!("0")),
            ("data", json!("é1")),
            ("data", json!("0x")),
        ] {
            let mut bad = good.clone();
            bad[key] = value;
            assert!(ReportedFrame::of(&bad).is_none(), "{bad}");
        }
        let mut file =
            CaptureEncoder::begin(Target::new("", Box::new(io::sink()), None), 100).unwrap();
        let bad = [good.clone(), Value::Null];
        assert!(
            file.write(&bad, 9)
                .unwrap_err()
                .to_string()
                .contains("a captured frame")
        );
        assert_eq!(file.write(&[good.clone(), good], 1).unwrap(), 1);
    }
}
