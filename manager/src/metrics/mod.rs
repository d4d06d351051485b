//! Metrics for collectors: by HTTP at a socket beside the control socket, and optionally at a port
//! of the loopback address.
//!
//! A thread serves them. It has the rights of a client of the control socket and requests its input
//! there, so the main loop has one more client and never waits for it. Domains are asked at most
//! once a second, however many collectors read.
//!
//! | module | contents |
//! |---|---|
//! | `listen` | connections: bounded in number, bytes and time |
//! | `request` | HTTP requests and answers |
//! | `gather` | status, audit, and each domain's statistics |
//! | `families` | the metrics made of them |
//! | `ports` | metrics of ports: queues to guests, tables of flows, firewall rules |
//! | `vm` | metrics of virtual machines |
//! | `make` | parts of families |
//! | `names` | bounds on the names that a domain can introduce |
//! | `text` | the two text formats |

mod families;
mod gather;
#[cfg(feature = "testing")]
pub mod hostile;
mod listen;
mod make;
mod names;
mod ports;
mod request;
mod text;
mod vm;

use gather::{GatherError, Scraper, Snapshot};
use listen::ScrapeListener;
use names::SeriesNames;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use text::{MetricFormat, MetricText};

/// Age up to which an answer is reused.
const FRESH: Duration = Duration::from_secs(1);

/// The listening sockets.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    /// At a path.
    pub(crate) local: Option<OwnedFd>,
    /// At a port of the loopback address.
    pub(crate) port: Option<OwnedFd>,
}

/// Metrics that are not served yet.
#[derive(Debug)]
pub(crate) struct Metrics {
    listeners: Vec<ScrapeListener>,
    source: MetricSource,
}

/// Returns metrics to serve, if there is a socket, and the main loop's end of their connection.
/// `user` has access at the path, beside root.
pub(crate) fn prepare(sockets: Sockets, user: u32) -> io::Result<Option<(Metrics, UnixStream)>> {
    let local = sockets.local.map(|fd| ScrapeListener::local(fd, user));
    let port = sockets.port.map(ScrapeListener::on_loopback);
    let listeners: Vec<ScrapeListener> = local.into_iter().chain(port).collect();
    if listeners.is_empty() {
        return Ok(None);
    }
    let (inside, outside) = UnixStream::pair()?;
    inside.set_nonblocking(true)?;
    outside.set_nonblocking(true)?;
    let source = MetricSource::new(outside);
    Ok(Some((Metrics { listeners, source }, inside)))
}

impl Metrics {
    /// Starts the thread that serves the metrics.
    pub(crate) fn start(self) -> io::Result<()> {
        let Self {
            listeners,
            mut source,
        } = self;
        thread::Builder::new()
            .name("metrics".into())
            .spawn(move || listen::serve(&listeners, |format| source.text(format)))
            .map(drop)
    }
}

/// The source of the text.
#[derive(Debug)]
struct MetricSource {
    scraper: Scraper,
    names: SeriesNames,
    last: Option<Last>,
    /// Age up to which a text is reused.
    fresh: Duration,
}

/// The last answer.
#[derive(Debug)]
struct Last {
    at: Instant,
    texts: [Arc<str>; 2],
}

impl MetricSource {
    fn new(control: UnixStream) -> Self {
        Self {
            scraper: Scraper::new(control),
            names: SeriesNames::default(),
            last: None,
            fresh: FRESH,
        }
    }

    /// Returns the text in a format, at most [`FRESH`] old.
    ///
    /// # Errors
    /// The main loop does not answer, or refuses.
    fn text(&mut self, format: MetricFormat) -> Result<Arc<str>, GatherError> {
        let last = match self
            .last
            .take()
            .filter(|last| last.at.elapsed() < self.fresh)
        {
            Some(last) => last,
            None => {
                let snapshot = self.scraper.gather()?;
                let texts = texts(&snapshot, &mut self.names);
                let at = Instant::now();
                Last { at, texts }
            }
        };
        let [open, text] = &last.texts;
        let text = Arc::clone(match format {
            MetricFormat::OpenMetrics => open,
            MetricFormat::Text => text,
        });
        self.last = Some(last);
        Ok(text)
    }
}

/// Returns the text in each format.
fn texts(snapshot: &Snapshot, names: &mut SeriesNames) -> [Arc<str>; 2] {
    let families = families::all(snapshot, names);
    [MetricFormat::OpenMetrics, MetricFormat::Text].map(|format| {
        let mut text = MetricText::new(format);
        for (family, samples) in &families.0 {
            text.family(family, samples);
        }
        text.finish().into()
    })
}

#[cfg(test)]
mod tests;
