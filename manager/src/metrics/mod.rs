//! Metrics for collectors: by HTTP at a socket beside the control socket, and optionally at a port
//! of the loopback address.
//!
//! A separate thread serves them. It is a client of the control socket and requests its input
//! there, so the main loop has one more client but never waits for it. The thread queries domains
//! at most once a second, regardless of the number of collectors.
//!
//! | module | contents |
//! |---|---|
//! | `listen` | connections: bounded in number, bytes and time |
//! | `request` | HTTP requests and answers |
//! | `gather` | status, audit, and each domain's statistics |
//! | `families` | the metrics |
//! | `ports` | metrics of ports: queues to guests, tables of flows, firewall rules |
//! | `vm` | metrics of virtual machines |
//! | `make` | builds families and samples |
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

/// Maximum age of an answer that is reused.
const REUSE_AGE: Duration = Duration::from_secs(1);

/// The listening sockets.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    /// Socket at a path.
    pub(crate) local: Option<OwnedFd>,
    /// Socket at a port of the loopback address.
    pub(crate) port: Option<OwnedFd>,
}

/// The metrics before their thread starts.
#[derive(Debug)]
pub(crate) struct Metrics {
    listeners: Vec<ScrapeListener>,
    source: MetricSource,
}

/// Returns the metrics and the main loop's end of their connection, or `None` without sockets.
/// `user` has access to the socket at the path, in addition to root.
pub(crate) fn prepare(sockets: Sockets, user: u32) -> io::Result<Option<(Metrics, UnixStream)>> {
    let local = sockets.local.map(|fd| ScrapeListener::new(fd, Some(user)));
    let port = sockets.port.map(|fd| ScrapeListener::new(fd, None));
    let listeners: Vec<ScrapeListener> = local.into_iter().chain(port).collect();
    if listeners.is_empty() {
        return Ok(None);
    }
    let (main_loop_end, metrics_end) = UnixStream::pair()?;
    main_loop_end.set_nonblocking(true)?;
    metrics_end.set_nonblocking(true)?;
    let source = MetricSource::new(metrics_end);
    Ok(Some((Metrics { listeners, source }, main_loop_end)))
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

/// Produces the text of the metrics.
#[derive(Debug)]
struct MetricSource {
    scraper: Scraper,
    names: SeriesNames,
    last: Option<Last>,
    /// Maximum age of a text that is reused.
    reuse_age: Duration,
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
            reuse_age: REUSE_AGE,
        }
    }

    /// Returns the text in a format, at most [`REUSE_AGE`] old.
    ///
    /// # Errors
    /// Returns an error if the main loop does not answer in time, or refuses the request.
    fn text(&mut self, format: MetricFormat) -> Result<Arc<str>, GatherError> {
        let last = match self
            .last
            .take()
            .filter(|last| last.at.elapsed() < self.reuse_age)
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
    let families = families::metric_families(snapshot, names);
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
