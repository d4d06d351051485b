//! A SYN flood from a guest's namespace, through a raw socket. Each segment begins a flow. For
//! comparison, the sender can send the same segments of a single flow.
//!
//! A process in a separate session sends it. Linux schedules a session's processes as one group, so
//! otherwise the flood and the probes would share one group's CPU time.

use crate::machines::address;
use anyhow::{Context, Result, bail, ensure};
use netdev::netns::{Namespace, in_netns};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// First argument with which this program is the sender of a flood.
pub(crate) const COMMAND: &str = "flood";
/// Line that the sender prints when it begins.
const SENDING: &str = "sending";

/// Lowest source port. Each segment has the next port.
const SOURCE_PORTS: u32 = 1024;
/// Number of source ports, after which the destination port changes.
const SOURCES: u32 = 60_000;
/// Lowest destination port. The victim's rules accept these ports, but no program listens at them.
const CLOSED_PORTS: u32 = 20_000;
/// Number of destination ports.
const CLOSED: u32 = 9000;
/// Offset of the data (5 words), and the flag SYN.
const SYN: [u8; 2] = [0x50, 2];

/// A running flood.
pub(crate) struct Flood {
    sender: Child,
    output: BufReader<ChildStdout>,
}

impl Flood {
    /// Starts to send segments from a namespace to innocent guest `victim`, as fast as the kernel
    /// accepts them. Each begins a new flow, or all belong to one flow.
    pub(crate) fn start(place: &Namespace, victim: usize, new_flows: bool) -> Result<Self> {
        let sender = Command::new(std::env::current_exe()?)
            .arg(COMMAND)
            .arg(place.path())
            .args([victim.to_string(), new_flows.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut sender = sender.context("the sender of a flood")?;
        let output = sender.stdout.take().context("its standard output")?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        ensure!(line.trim() == SENDING, "the sender of a flood failed");
        Ok(Self { sender, output })
    }

    /// Stops the flood and returns the number of segments that the kernel accepted.
    pub(crate) fn stop(mut self) -> Result<u64> {
        drop(self.sender.stdin.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        self.sender.wait()?;
        text.trim().parse().context("the sender of a flood failed")
    }
}

/// Sends a flood until the end of standard input, and prints the number of segments that the kernel
/// accepted.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let [place, victim, new_flows] = args else {
        bail!("usage: hostile-run {COMMAND} NAMESPACE VICTIM NEW_FLOWS");
    };
    let (victim, new_flows) = (victim.parse()?, new_flows.parse()?);
    rustix::process::setsid().context("a session")?;
    let raw = || socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::TCP));
    let socket = in_netns(place, raw)?.context("a raw socket")?;
    let stop = Arc::<AtomicBool>::default();
    let stopped = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ended = std::io::stdin().read(&mut [0]);
        stopped.store(true, Ordering::Relaxed);
    });
    println!("{SENDING}");
    println!("{}", send(&socket, victim, new_flows, &stop));
    Ok(())
}

fn send(socket: &OwnedFd, victim: usize, new_flows: bool, stop: &AtomicBool) -> u64 {
    let to = SocketAddrV4::new(address(victim), 0);
    let mut accepted = 0;
    let mut flow = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        flow = flow.wrapping_add(new_flows.into());
        accepted += u64::from(sendto(socket, &segment(flow), SendFlags::empty(), &to).is_ok());
    }
    accepted
}

/// Returns the SYN of flow `number`.
fn segment(number: u32) -> [u8; 20] {
    let source = SOURCE_PORTS + number % SOURCES;
    let destination = CLOSED_PORTS + number / SOURCES % CLOSED;
    let mut bytes = [0; 20];
    bytes[..2].copy_from_slice(&(source as u16).to_be_bytes());
    bytes[2..4].copy_from_slice(&(destination as u16).to_be_bytes());
    bytes[4..8].copy_from_slice(&number.to_be_bytes());
    bytes[12..14].copy_from_slice(&SYN);
    // The checksum remains 0, so the victim's kernel drops the segment without an answer, after the
    // firewall has accepted it.
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_million_flows_are_distinct() {
        let ports = |number| <[u8; 4]>::try_from(&segment(number)[..4]).unwrap();
        let flows: BTreeSet<[u8; 4]> = (0..1_000_000).map(ports).collect();
        assert_eq!(flows.len(), 1_000_000);
    }
}
