//! Records one window of `cargo xtask xen exp` in dom0: the hypervisor's trace and the counters of
//! the wire for a given time. Prints their sums as one line of JSON.
//!
//! The emulator counts each instruction of the machine as one tick of the time-stamp counter, and
//! idle time as ticks, too. So instructions are the ticks in which Xen did not run its idle domain.

mod trace;

use serde_json::json;
use shmem::time::tsc;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: xen-window NAME INTERFACE tx|rx MILLISECONDS

NAME is repeated in what is printed; frames of INTERFACE are counted in that direction. With tx,
where guests receive, also segments that were acknowledged.";

/// Subclasses of events to record: hypercalls (`TRC_PV_ENTRY`), hypercalls within multicalls
/// (`TRC_PV_SUBCALL`), and switches between domains (`TRC_SCHED_VERBOSE`).
const EVENTS: &str = "0x0022b000";
/// Pages of Xen's trace buffer. A whole window fits, so the tracer writes nothing during the
/// window.
const BUFFER_PAGES: &str = "4096";
/// The trace file.
const FILE: &str = "/tmp/trace";
/// Deadline of the tracer's start and of its end.
const DEADLINE: Duration = Duration::from_secs(60);

/// Counters of the wire and of dom0's TCP at one time.
#[derive(Clone, Copy, Debug)]
struct CounterSnapshot {
    at: u64,
    frames: u64,
    bytes: u64,
    /// Segments that the peers have acknowledged.
    acknowledged: u64,
    /// Segments that were retransmitted or arrived twice.
    again: u64,
}

impl CounterSnapshot {
    fn now(interface: &str, direction: &str) -> io::Result<Self> {
        let read = |what: &str| {
            let file = format!("/sys/class/net/{interface}/statistics/{direction}_{what}");
            let text = std::fs::read_to_string(&file);
            let text = text.map_err(|why| io::Error::other(format!("{file}: {why}")))?;
            text.trim().parse().map_err(io::Error::other)
        };
        let [segments, more] = ["/proc/net/snmp", "/proc/net/netstat"].map(std::fs::read_to_string);
        let (segments, more) = (segments?, more?);
        let mut again = counter(&segments, "Tcp:", "RetransSegs")?;
        for twice in ["TCPDSACKOldSent", "TCPDSACKOfoSent"] {
            again += counter(&more, "TcpExt:", twice)?;
        }
        Ok(Self {
            at: tsc(),
            frames: read("packets")?,
            bytes: read("bytes")?,
            acknowledged: counter(&more, "TcpExt:", "TCPDelivered")?,
            again,
        })
    }
}

/// Returns a counter of a table of the kernel, which has a line of names and then a line of values
/// per group.
fn counter(table: &str, group: &str, name: &str) -> io::Result<u64> {
    let mut lines = table.lines().filter(|line| line.starts_with(group));
    let names = lines.next().unwrap_or_default().split_whitespace();
    let values = lines.next().unwrap_or_default().split_whitespace();
    let found = names.zip(values).find(|(found, _)| *found == name);
    let (_, value) = found.ok_or_else(|| io::Error::other(format!("{group} has no {name}")))?;
    value.parse().map_err(io::Error::other)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, interface, direction, milliseconds] = arguments.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match window(name, interface, direction, milliseconds) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("xen-window: {why}");
            ExitCode::FAILURE
        }
    }
}

fn window(name: &str, interface: &str, direction: &str, milliseconds: &str) -> io::Result<String> {
    let length = Duration::from_millis(milliseconds.parse().map_err(io::Error::other)?);
    let tracer = start()?;
    let begin = CounterSnapshot::now(interface, direction)?;
    sleep(length);
    let end = CounterSnapshot::now(interface, direction)?;
    stop(tracer)?;
    let sums = trace::sums(&std::fs::read(FILE)?, begin.at..end.at).map_err(io::Error::other)?;
    let acknowledged = end.acknowledged - begin.acknowledged;
    let line = json!({
        "cell": name,
        "ticks": end.at - begin.at,
        "frames": end.frames - begin.frames,
        "bytes": end.bytes - begin.bytes,
        "acknowledged": (direction == "tx").then_some(acknowledged),
        "again": end.again - begin.again,
        "ran": sums.ran,
        "calls": sums.calls,
        "operations": sums.operations,
    });
    Ok(line.to_string())
}

/// Starts the tracer, and returns when tracing is enabled.
fn start() -> io::Result<Child> {
    if Path::new(FILE).exists() {
        std::fs::remove_file(FILE)?;
    }
    let tracer = Command::new("xentrace")
        .args(["-D", "-S", BUFFER_PAGES, "-e", EVENTS, FILE])
        .stdout(Stdio::null())
        .spawn()?;
    let since = Instant::now();
    // The tracer creates the file just before it enables tracing.
    while !Path::new(FILE).exists() {
        if since.elapsed() > DEADLINE {
            return Err(io::Error::other("xentrace does not start"));
        }
        sleep(Duration::from_millis(10));
    }
    sleep(Duration::from_millis(50));
    Ok(tracer)
}

fn stop(mut tracer: Child) -> io::Result<()> {
    let pid = rustix::process::Pid::from_child(&tracer);
    rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
    let since = Instant::now();
    loop {
        match tracer.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(io::Error::other(format!("xentrace: {status}"))),
            None if since.elapsed() > DEADLINE => {
                tracer.kill()?;
                return Err(io::Error::other("xentrace does not end"));
            }
            None => sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_group_and_name() {
        let table = "TcpExt: One Two\nTcpExt: 1 2\nIpExt: Two\nIpExt: 3\n";
        assert_eq!(counter(table, "TcpExt:", "Two").unwrap(), 2);
        assert_eq!(counter(table, "IpExt:", "Two").unwrap(), 3);
        assert!(counter(table, "IpExt:", "One").is_err());
        assert!(counter(table, "Tcp:", "One").is_err());
    }
}
