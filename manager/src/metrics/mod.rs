//! Metrics, for those who watch many machines: by HTTP at a socket beside the control socket, and
//! at a port of the loopback address where one is asked for.
//!
//! All of it is a thread of its own, which knows no more than a client of the control socket can
//! ask for, and asks for it in the same way: the main loop has a client more, and waits for nobody.
//! However many ask, domains are asked once a second at most.
//!
//! | module | what it is |
//! |---|---|
//! | `listen` | connections: bounded in number, bytes and time |
//! | `request` | what an HTTP client asks for |
//! | `gather` | status, audit, and what each domain counts |
//! | `families` | these as metrics |
//! | `names` | how many names a domain can bring up |
//! | `text` | the two text formats |

mod families;
mod gather;
mod listen;
mod names;
mod request;
mod text;

use gather::{Asker, Snapshot, Trouble};
use listen::Listener;
use names::Names;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use text::{Format, Text};

/// For so long an answer is good enough for who asks next.
const FRESH: Duration = Duration::from_secs(1);

/// Where metrics are read.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    /// By a path.
    pub(crate) local: Option<OwnedFd>,
    /// By a port of the loopback address.
    pub(crate) port: Option<OwnedFd>,
}

/// Metrics that are not served yet.
#[derive(Debug)]
pub(crate) struct Metrics {
    listeners: Vec<Listener>,
    source: Source,
}

/// Prepares to serve metrics, if there is a socket to serve them at; and the connection by which
/// the main loop is asked. `user` may ask at the path, as root may.
pub(crate) fn prepare(sockets: Sockets, user: u32) -> io::Result<Option<(Metrics, UnixStream)>> {
    let local = sockets.local.map(|fd| Listener::local(fd, user));
    let port = sockets.port.map(Listener::of_anybody);
    let listeners: Vec<Listener> = local.into_iter().chain(port).collect();
    if listeners.is_empty() {
        return Ok(None);
    }
    let (inside, outside) = UnixStream::pair()?;
    inside.set_nonblocking(true)?;
    outside.set_nonblocking(true)?;
    let source = Source::new(outside);
    Ok(Some((Metrics { listeners, source }, inside)))
}

impl Metrics {
    /// Serves them, for good, by a thread.
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

/// Where the text comes from.
#[derive(Debug)]
struct Source {
    asker: Asker,
    names: Names,
    last: Option<Last>,
    /// As old as a text may be.
    fresh: Duration,
}

/// The last answer.
#[derive(Debug)]
struct Last {
    at: Instant,
    texts: [Arc<str>; 2],
}

impl Source {
    fn new(control: UnixStream) -> Self {
        Self {
            asker: Asker::new(control),
            names: Names::default(),
            last: None,
            fresh: FRESH,
        }
    }

    /// The text in a format, at most [`FRESH`] old.
    ///
    /// # Errors
    /// Why it cannot be had now.
    fn text(&mut self, format: Format) -> Result<Arc<str>, Trouble> {
        let last = match self
            .last
            .take()
            .filter(|last| last.at.elapsed() < self.fresh)
        {
            Some(last) => last,
            None => {
                let snapshot = self.asker.gather()?;
                let texts = self.write(&snapshot);
                let at = Instant::now();
                Last { at, texts }
            }
        };
        let [open, text] = &last.texts;
        let text = Arc::clone(match format {
            Format::OpenMetrics => open,
            Format::Text => text,
        });
        self.last = Some(last);
        Ok(text)
    }

    fn write(&mut self, snapshot: &Snapshot) -> [Arc<str>; 2] {
        let families = families::all(snapshot, &mut self.names);
        [Format::OpenMetrics, Format::Text].map(|format| {
            let mut text = Text::new(format);
            for (family, samples) in &families {
                text.family(family, samples);
            }
            text.finish().into()
        })
    }
}

#[cfg(test)]
mod tests;
