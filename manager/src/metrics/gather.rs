//! Gathers the input of all metrics as a client of the main loop, by lines of JSON.

use abi::machine::{Audit, ControlError, ControlRequest, RelayReply, Status};
use abi::mailbox::MailboxRequest;
use rustix::event::PollFlags;
use rustix::io::Errno;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Time limit for all answers. Domains that have not answered by then are omitted.
const GATHER_TIMEOUT: Duration = Duration::from_secs(4);
/// Time limit for one domain.
const DOMAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of one read.
const CHUNK: usize = 64 * 1024;
/// Maximum number of unanswered requests.
const UNANSWERED_MAX: usize = 8;
/// Maximum length of an answer in bytes, far above a full audit of the largest machine.
const ANSWER_MAX: usize = 256 << 20;

/// Limit of replies of a domain, so that a hostile one cannot fill the memory. These replies can
/// hold four times the counters of 110 guests with 256 rules each.
const REPLIES_MAX: usize = 16;

/// A reply with further ports of a driver domain's statistics, and the number of the next port.
#[derive(Debug, Deserialize)]
struct PortsPage {
    ports: Map<String, Value>,
    next: Option<u32>,
}

/// The input of all metrics at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) status: Status,
    pub(crate) audit: Option<Audit>,
    /// Statistics of the domains that have answered, by name.
    pub(crate) stats: BTreeMap<String, Value>,
    /// Time that the requests took.
    pub(crate) took: Duration,
}

/// Reason for a missing answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GatherError {
    /// The answer has not arrived in time.
    TimedOut,
    /// The main loop refused the request, with this text.
    Refused(String),
    /// The main loop has exited.
    Closed,
}

/// A client of the main loop.
#[derive(Debug)]
pub(crate) struct Scraper {
    stream: UnixStream,
    input: Vec<u8>,
    /// Number of unanswered requests.
    unanswered: usize,
    /// Domains that did not answer last time. They are queried last.
    silent: Vec<String>,
    /// Time limits for all answers, and for the answers of one domain.
    gather_timeout: Duration,
    domain: Duration,
}

impl Scraper {
    /// Returns a client over a non-blocking connection.
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            input: Vec::new(),
            unanswered: 0,
            silent: Vec::new(),
            gather_timeout: GATHER_TIMEOUT,
            domain: DOMAIN_TIMEOUT,
        }
    }

    /// Requests status, audit, and the statistics of every domain.
    pub(crate) fn gather(&mut self) -> Result<Snapshot, GatherError> {
        let began = Instant::now();
        let end = began + self.gather_timeout;
        let status: Status = self.request(&ControlRequest::Status, end)?;
        let audit = match self.request(&ControlRequest::Grants, end) {
            Ok(audit) => Some(audit),
            Err(GatherError::Closed) => return Err(GatherError::Closed),
            Err(_) => None,
        };
        let alive = status.domains.iter().filter(|domain| domain.alive);
        let mut names: Vec<&str> = alive.map(|domain| domain.name.as_str()).collect();
        names.sort_by_key(|name| self.silent.iter().any(|silent| silent == name));
        let mut stats = BTreeMap::new();
        let mut silent = Vec::new();
        for name in names {
            match self.stat(name, end.min(Instant::now() + self.domain)) {
                Ok(stat) => drop(stats.insert(name.to_owned(), stat)),
                Err(GatherError::Closed) => return Err(GatherError::Closed),
                Err(_) => silent.push(name.to_owned()),
            }
        }
        self.silent = silent;
        Ok(Snapshot {
            status,
            audit,
            stats,
            took: began.elapsed(),
        })
    }

    /// Requests the statistics of a domain. Those of a driver domain with many ports have several
    /// replies.
    fn stat(&mut self, domain: &str, end: Instant) -> Result<Value, GatherError> {
        let mut stat: Value = self.relay(domain, &MailboxRequest::Stat, end)?;
        for _ in 0..REPLIES_MAX {
            let next = stat.get("next").and_then(Value::as_u64);
            let Some(first) = next.and_then(|next| u32::try_from(next).ok()) else {
                return Ok(stat);
            };
            let page: PortsPage = self.relay(domain, &MailboxRequest::Ports { first }, end)?;
            if let Some(stat) = stat.as_object_mut() {
                if let Some(ports) = stat.get_mut("ports").and_then(Value::as_object_mut) {
                    ports.extend(page.ports);
                }
                stat.insert("next".to_owned(), page.next.into());
            }
        }
        Err(GatherError::Refused("the counter list is endless".into()))
    }

    fn relay<T: DeserializeOwned>(
        &mut self,
        domain: &str,
        request: &MailboxRequest,
        end: Instant,
    ) -> Result<T, GatherError> {
        let refused = |error: serde_json::Error| GatherError::Refused(error.to_string());
        let request = serde_json::to_string(request).map_err(refused)?;
        let domain = domain.to_owned();
        let relayed: RelayReply = self.request(&ControlRequest::Relay { domain, request }, end)?;
        serde_json::from_str(&relayed.reply).map_err(refused)
    }

    fn request<T: DeserializeOwned>(
        &mut self,
        request: &ControlRequest,
        end: Instant,
    ) -> Result<T, GatherError> {
        if Instant::now() >= end {
            return Err(GatherError::TimedOut);
        }
        while self.unanswered >= UNANSWERED_MAX {
            self.line(end)?;
            self.unanswered -= 1;
        }
        let mut line =
            serde_json::to_vec(request).map_err(|e| GatherError::Refused(e.to_string()))?;
        line.push(b'\n');
        // All unanswered requests fit into the socket's buffer.
        if rustix::io::write(&self.stream, &line) != Ok(line.len()) {
            return Err(GatherError::Closed);
        }
        self.unanswered += 1;
        // Late answers to earlier requests precede the answer to this one.
        let answer = loop {
            let line = self.line(end)?;
            self.unanswered -= 1;
            if self.unanswered == 0 {
                break line;
            }
        };
        if let Ok(refused) = serde_json::from_slice::<ControlError>(&answer) {
            return Err(GatherError::Refused(refused.error));
        }
        serde_json::from_slice(&answer).map_err(|e| GatherError::Refused(e.to_string()))
    }

    /// Returns the next line.
    fn line(&mut self, end: Instant) -> Result<Vec<u8>, GatherError> {
        let mut searched = 0;
        loop {
            let new = self.input.get(searched..).unwrap_or_default();
            if let Some(at) = new.iter().position(|&byte| byte == b'\n') {
                let mut line: Vec<u8> = self.input.drain(..=searched + at).collect();
                line.pop();
                return Ok(line);
            }
            searched = self.input.len();
            if searched > ANSWER_MAX {
                return Err(GatherError::Closed);
            }
            let mut chunk = [0; CHUNK];
            match rustix::io::read(&self.stream, &mut chunk) {
                Ok(0) => return Err(GatherError::Closed),
                Ok(n) => self.input.extend(chunk.get(..n).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(end)?,
                Err(_) => return Err(GatherError::Closed),
            }
        }
    }

    fn wait(&self, end: Instant) -> Result<(), GatherError> {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(GatherError::TimedOut);
        }
        let source = ((), self.stream.as_fd(), PollFlags::IN);
        // After a timeout, the next read fails with `EAGAIN`.
        let _ = link::wait_for(&[source], Some(left.as_nanos() as u64));
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::thread::JoinHandle;

    /// The status of a machine with a driver domain and one guest.
    pub(crate) const STATUS: &str = include_str!("testing/status.json");
    /// The statistics of these two domains.
    pub(crate) const DRIVER: &str = include_str!("testing/driver.json");
    pub(crate) const GUEST: &str = include_str!("testing/guest.json");
    pub(crate) const AUDIT: &str = include_str!("testing/audit.json");

    /// The beginning of statistics with a second reply, and that reply.
    const MORE: &str = r#"{"next":2,"#;
    const LAST_PORT: &str = r#"{"ports":{"vif.last-0":{}},"next":null}"#;

    fn compact(text: &str) -> String {
        let value: Value = serde_json::from_str(text).unwrap();
        value.to_string()
    }

    /// Runs a main loop whose domains in `silent` do not answer at first. The thread returns the
    /// received requests.
    pub(crate) fn main_loop(silent: &'static [&'static str]) -> (Scraper, JoinHandle<Vec<String>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let served = std::thread::spawn(move || {
            let mut got = Vec::new();
            let mut unanswered = Vec::new();
            for line in BufReader::new(&theirs).lines() {
                let line = line.unwrap();
                let control: ControlRequest = serde_json::from_str(&line).unwrap();
                got.push(line);
                let answer = match control {
                    ControlRequest::Status => compact(STATUS),
                    ControlRequest::Grants => compact(AUDIT),
                    ControlRequest::Relay { domain, request } => {
                        let reply = match (domain.as_str(), request.contains("ports")) {
                            ("driver", false) => compact(DRIVER).replacen('{', MORE, 1),
                            ("driver", true) => LAST_PORT.to_owned(),
                            _ => compact(GUEST),
                        };
                        let answer = serde_json::to_string(&RelayReply { reply }).unwrap();
                        if silent.contains(&domain.as_str()) {
                            unanswered.push(answer);
                            continue;
                        }
                        answer
                    }
                    other => panic!("{other:?}"),
                };
                // A domain that was stopped for a while answers late, in this way.
                for late in unanswered.drain(..) {
                    writeln!(&theirs, "{late}").unwrap();
                }
                writeln!(&theirs, "{answer}").unwrap();
            }
            got
        });
        let mut scraper = Scraper::new(ours);
        // The test's thread may get no CPU for a while.
        scraper.gather_timeout = Duration::from_secs(600);
        scraper.domain = match silent {
            [] => scraper.gather_timeout,
            _ => Duration::from_secs(4),
        };
        (scraper, served)
    }

    #[test]
    fn every_domain_is_queried() {
        let (mut scraper, served) = main_loop(&[]);
        let snapshot = scraper.gather().unwrap();
        assert_eq!(snapshot.stats.len(), 2);
        assert!(snapshot.audit.is_some());
        let ports = snapshot.stats["driver"]["ports"].as_object().unwrap();
        assert!(ports.contains_key("vif.last-0") && ports.len() > 1);
        drop(scraper);
        assert_eq!(served.join().unwrap().len(), 5);
    }

    #[test]
    fn silent_domains_are_skipped_then_queried_last() {
        let (mut scraper, served) = main_loop(&["driver"]);
        let snapshot = scraper.gather().unwrap();
        assert_eq!(snapshot.stats.keys().collect::<Vec<_>>(), ["web"]);
        // The late answer is not attributed to another domain.
        assert!(snapshot.stats["web"].get("vifs").is_some());
        scraper.gather().unwrap();
        drop(scraper);
        let got = served.join().unwrap();
        let relays: Vec<bool> = got
            .iter()
            .filter(|line| line.contains("relay"))
            .map(|line| line.contains("driver"))
            .collect();
        assert_eq!(relays, [true, false, false, true]);
    }

    #[test]
    fn an_exit_of_the_main_loop_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        drop(theirs);
        assert_eq!(
            Scraper::new(ours).gather().unwrap_err(),
            GatherError::Closed
        );
    }
}
