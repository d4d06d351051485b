//! A web server under an open load, with nginx at a lane's guest and httperf at its wire. Each
//! request has a separate connection. httperf opens connections at a steady rate even if the server
//! does not keep up.

use crate::kernel;
use crate::lane::Lane;
use crate::lane::cores::Cores;
use crate::lane::ends::{GUEST, LaneEnds};
use crate::lane::events::{self, PerfEvents};
use crate::peers::process::{self, ForeignProgram, killed_with_parent};
use crate::plan::Web;
use anyhow::{Context as _, bail};
use figures::measure::{CpuTimes, HostCpuTimes};
use figures::{Failure, interrupt};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Port of the server.
const PORT: u16 = 8080;
/// Timeout of a reply, seconds.
const TIMEOUT_S: u32 = 1;
/// Required programs.
const PROGRAMS: [&str; 5] = ["nginx", "httperf", "setpriv", "nsenter", "taskset"];

/// Checks that the programs are installed.
///
/// # Errors
/// Returns [`Failure::CannotRun`] with the missing packages.
pub fn possible() -> Result<(), Failure> {
    let missing: Vec<String> = PROGRAMS
        .iter()
        .filter_map(|program| kernel::require_programs(&[program]).err())
        .map(|error| error.to_string())
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Failure::CannotRun(missing.join("; "))),
    }
}

/// A server at a lane's guest, stopped on drop.
#[derive(Debug)]
pub struct WebServer {
    program: ForeignProgram,
    // This is the last field, so that the server stops before its files are deleted.
    _folder: TempDir,
}

/// Result of a window at one rate.
#[derive(Clone, Debug)]
pub struct WebWindow {
    /// Figures by metric.
    pub figures: BTreeMap<String, f64>,
    /// True if the underlying hypervisor stole too much CPU time.
    pub disturbed: bool,
}

/// Returns a command that runs a program in the namespace of a process, on one core, with the same
/// process id throughout.
fn command_in_namespace(holder: i32, core: usize, program: &str) -> Command {
    let mut command = killed_with_parent("nsenter");
    command.arg(format!("--net=/proc/{holder}/ns/net")).args([
        "taskset",
        "-c",
        &core.to_string(),
        program,
    ]);
    command
}

impl WebServer {
    /// Starts a server with a file of `bytes` bytes.
    ///
    /// # Errors
    /// Returns an error with the server's output if the server does not listen.
    pub fn start(ends: &LaneEnds, cores: Cores, bytes: usize) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let here = folder.path();
        let file: Vec<u8> = (0..bytes).map(|at| b'a' + (at % 26) as u8).collect();
        fs::write(here.join("file"), file)?;
        fs::write(here.join("nginx.conf"), settings(here))?;
        let errors = here.join("error.log");
        let mut command = command_in_namespace(ends.guest.pid(), cores.guest, "nginx");
        command.arg("-e").arg(&errors);
        command.arg("-c").arg(here.join("nginx.conf"));
        let mut program = ForeignProgram::start(&mut command)?;
        let pid = program.pid();
        process::wait("nginx listens", || {
            if let Some(status) = program.0.try_wait()? {
                let output = fs::read_to_string(&errors).unwrap_or_default();
                bail!(Failure::Failed(format!(
                    "nginx: {status}: {}",
                    output.trim()
                )));
            }
            Ok(listens(pid))
        })?;
        let _folder = folder;
        Ok(Self { program, _folder })
    }

    /// Requests the file at this rate for this time, and waits for outstanding requests.
    ///
    /// # Errors
    /// Returns an error if the client cannot run, or the user interrupted the run.
    pub fn window(
        &self,
        lane: &Lane,
        cores: Cores,
        offered: u32,
        length: Duration,
        tsc_hz: u64,
    ) -> anyhow::Result<WebWindow> {
        let connections = (f64::from(offered) * length.as_secs_f64()).ceil().max(1.0) as u64;
        let mut command = command_in_namespace(lane.ends().wire.pid(), cores.wire, "httperf");
        command
            .args(["--hog", "--uri", "/file", "--num-calls", "1"])
            .args(["--server", &GUEST.to_string()])
            .args(["--port", &PORT.to_string()])
            .args(["--rate", &offered.to_string()])
            .args(["--num-conns", &connections.to_string()])
            .args(["--timeout", &TIMEOUT_S.to_string()])
            .stdout(Stdio::piped());
        let parts = lane.parts_of(&[self.program.pid()]);
        let (machine, events) = (HostCpuTimes::read(), PerfEvents::start(&parts));
        let cpu = CpuTimes::read(&parts);
        let mut client = ForeignProgram::start(&mut command)?;
        let began = Instant::now();
        let most = length * 4 + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = client.0.try_wait()? {
                break status;
            }
            if began.elapsed() > most {
                bail!(Failure::Failed("httperf does not exit".to_owned()));
            }
            interrupt::sleep(Duration::from_millis(10))?;
        };
        let cpu_ns = CpuTimes::read(&parts).since(&cpu);
        let events = events.end();
        let disturbed = HostCpuTimes::read().disturbed_since(machine);
        let mut output = String::new();
        let mut out = client.0.stdout.take().context("no pipe")?;
        out.read_to_string(&mut output)?;
        let output =
            HttperfOutput::of(&output).with_context(|| format!("httperf: {status}: {output}"))?;
        let mut figures = output.figures();
        if output.replies > 0.0 {
            let per_ns = tsc_hz as f64 / 1e9;
            let mut total = 0.0;
            for (part, ns) in cpu_ns {
                let cycles = ns as f64 * per_ns / output.replies;
                total += cycles;
                figures.insert(format!("cycles_per_request.{part}"), cycles);
            }
            figures.insert("cycles_per_request.total".to_owned(), total);
            events::figures(&events, "request", output.replies, &mut figures);
        }
        Ok(WebWindow { figures, disturbed })
    }
}

/// Returns whether the process runs nginx and listens.
fn listens(pid: i32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let listener = format!(":{PORT:04X} 00000000:0000 0A ");
    program.ends_with("nginx") && sockets.contains(&listener)
}

/// Returns the server's settings: one process, no keep-alive, no files outside `here`.
fn settings(here: &Path) -> String {
    let here = here.display();
    let mut text = format!(
        "daemon off; master_process off; pid {here}/pid;\n\
         events {{ worker_connections 8192; }}\n\
         http {{ access_log off; keepalive_timeout 0; sendfile on;\n"
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        text += &format!("{kind}_temp_path {here}/{kind};\n");
    }
    text + &format!("server {{ listen {GUEST}:{PORT} backlog=4096; root {here}; }} }}\n")
}

/// Results that httperf prints.
#[derive(Clone, Copy, Debug, PartialEq)]
struct HttperfOutput {
    connections: f64,
    replies: f64,
    seconds: f64,
    /// Median lifetime of a connection, milliseconds. `None` if no connection completed.
    median_ms: Option<f64>,
}

impl HttperfOutput {
    fn of(output: &str) -> Option<Self> {
        let total = output.lines().find(|line| line.starts_with("Total: "))?;
        let time = |line: &&str| line.starts_with("Connection time [ms]: min");
        let time = output.lines().find(time);
        Some(Self {
            connections: number_after(total, "connections")?,
            replies: number_after(total, "replies")?,
            seconds: number_after(total, "test-duration").filter(|&seconds| seconds > 0.0)?,
            median_ms: time.and_then(|line| number_after(line, "median")),
        })
    }

    fn figures(&self) -> BTreeMap<String, f64> {
        let unanswered = 1.0 - self.replies / self.connections.max(1.0);
        let each = [
            ("replies", self.replies / self.seconds),
            ("unanswered", unanswered.clamp(0.0, 1.0)),
        ];
        let median = self.median_ms.filter(|_| self.replies > 0.0);
        let median = median.map(|ms| ("connection_ms.p50", ms));
        let all = each.into_iter().chain(median);
        all.map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Returns the number after a word.
fn number_after(line: &str, word: &str) -> Option<f64> {
    let mut words = line.split_whitespace().skip_while(|&found| found != word);
    words.nth(1)?.parse().ok()
}

/// Servers of lanes, started on first use.
#[derive(Debug, Default)]
pub struct WebServers(BTreeMap<usize, WebServer>);

impl WebServers {
    /// Returns the server of a lane.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub fn of(
        &mut self,
        number: usize,
        lane: &Lane,
        cores: Cores,
        web: &Web,
    ) -> anyhow::Result<&WebServer> {
        match self.0.entry(number) {
            Entry::Occupied(there) => Ok(there.into_mut()),
            Entry::Vacant(empty) => {
                Ok(empty.insert(WebServer::start(lane.ends(), cores, web.bytes)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
        Total: connections 400 requests 390 replies 380 test-duration 1.900 s\n\n\
        Connection rate: 210.5 conn/s (4.7 ms/conn, <=7 concurrent connections)\n\
        Connection time [ms]: min 0.2 avg 0.4 max 6.0 median 0.5 stddev 0.6\n\
        Connection time [ms]: connect 0.1\n";

    #[test]
    fn output_of_httperf_becomes_figures() {
        let figures = HttperfOutput::of(OUTPUT).unwrap().figures();
        assert_eq!(figures["replies"], 200.0);
        assert!((figures["unanswered"] - 0.05).abs() < 1e-9);
        assert_eq!(figures["connection_ms.p50"], 0.5);
        assert_eq!(HttperfOutput::of("httperf: no such host"), None);
        let none = OUTPUT.replace("replies 380", "replies 0");
        let figures = HttperfOutput::of(&none).unwrap().figures();
        assert_eq!((figures["replies"], figures["unanswered"]), (0.0, 1.0));
        assert!(!figures.contains_key("connection_ms.p50"));
    }
}
