//! A fake API server: lists in pages, watches, and faults.

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// The path of a kind, and its name in objects.
pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const NAMESPACES: &str = "/api/v1/namespaces";
pub(crate) const PODS: &str = "/api/v1/pods";
pub(crate) const POLICIES: &str = "/apis/networking.k8s.io/v1/networkpolicies";

/// Faults of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// It sends half of each event, and then ends the connection.
    HalfEvents,
    /// It sends these bytes instead of an answer.
    Raw(Vec<u8>),
    /// It sends this line instead of the events of a watch.
    Line(String),
    /// It sends a few bytes at a time.
    Slow,
    /// It accepts connections, and answers nothing.
    Silent,
}

struct State {
    version: u64,
    /// Versions before this one are compacted.
    oldest: u64,
    objects: BTreeMap<(&'static str, String), Value>,
    /// Version, path and line of each event.
    events: Vec<(u64, &'static str, String)>,
    fault: Fault,
    /// The only valid value of the header `Authorization`, if any is needed.
    token: Option<String>,
    sockets: Vec<TcpStream>,
    /// The lists and watches that were requested.
    requests: Vec<String>,
    is_over: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    tls: Option<Arc<ServerConfig>>,
}

pub(crate) struct Api {
    shared: Arc<Shared>,
    pub(crate) address: SocketAddr,
    /// The server's certificate, which is its own authority.
    pub(crate) certificate: String,
}

impl Api {
    pub(crate) fn new(is_tls: bool) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), is_tls)
    }

    fn at(address: SocketAddr, is_tls: bool) -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let tls = is_tls.then(|| {
            let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![cert.der().clone()], key);
            Arc::new(config.unwrap())
        });
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            version: 100,
            oldest: 0,
            objects: BTreeMap::new(),
            events: Vec::new(),
            fault: Fault::None,
            token: None,
            sockets: Vec::new(),
            requests: Vec::new(),
            is_over: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            tls,
        });
        let its = Arc::clone(&shared);
        thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                let mut state = its.state();
                if state.is_over {
                    return;
                }
                let end = socket.try_clone().unwrap();
                state.sockets.push(socket.try_clone().unwrap());
                drop(state);
                let its = Arc::clone(&its);
                thread::spawn(move || {
                    // A client that disconnects does not cause an error.
                    let _ = its.serve(socket);
                    let _ = end.shutdown(Shutdown::Both);
                });
            }
        });
        Self {
            shared,
            address,
            certificate: cert.pem(),
        }
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.shared.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.address)
    }

    /// Creates or replaces an object.
    pub(crate) fn put(&self, path: &'static str, mut object: Value) {
        let mut state = self.shared.state();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let key = (path, name(&object));
        let before = state.objects.insert(key, object.clone());
        let kind = if before.is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        state.event(path, kind, &object);
        self.shared.changed.notify_all();
    }

    pub(crate) fn remove(&self, path: &'static str, name: &str) {
        let mut state = self.shared.state();
        state.version += 1;
        let mut object = state.objects.remove(&(path, name.to_owned())).unwrap();
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.event(path, "DELETED", &object);
        self.shared.changed.notify_all();
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        let sockets = std::mem::take(&mut self.shared.state().sockets);
        for socket in sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }

    /// Forgets all events.
    pub(crate) fn compact(&self) {
        let mut state = self.shared.state();
        state.oldest = state.version;
        state.events.clear();
    }

    pub(crate) fn set_fault(&self, fault: Fault) {
        self.shared.state().fault = fault;
    }

    pub(crate) fn set_token(&self, token: &str) {
        self.shared.state().token = Some(format!("Bearer {token}"));
    }

    /// Returns the number of requests that begin like this.
    pub(crate) fn requests(&self, start: &str) -> usize {
        let state = self.shared.state();
        let of = state.requests.iter();
        of.filter(|request| request.starts_with(start)).count()
    }

    /// Stops the server during `meanwhile`, then restarts it with the same objects at the same
    /// address.
    pub(crate) fn while_stopped(&self, meanwhile: impl FnOnce()) {
        self.set_fault(Fault::Raw(Vec::new()));
        self.cut();
        meanwhile();
        self.set_fault(Fault::None);
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.cut();
        let _ = TcpStream::connect(self.address);
    }
}

/// Returns `NAMESPACE/NAME`, or `NAME` for an object of the cluster.
fn name(object: &Value) -> String {
    let text = |key: &str| object["metadata"][key].as_str();
    match (text("namespace"), text("name").unwrap()) {
        (Some(namespace), name) => format!("{namespace}/{name}"),
        (None, name) => name.to_owned(),
    }
}

impl State {
    fn event(&mut self, path: &'static str, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({ "type": kind, "object": object }));
        self.events.push((self.version, path, line));
    }
}

trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn serve(&self, socket: TcpStream) -> io::Result<()> {
        let fault = self.state().fault.clone();
        if fault == Fault::Silent {
            let mut all = Vec::new();
            return (&socket).read_to_end(&mut all).map(drop);
        }
        let mut stream: Box<dyn Stream> = match &self.tls {
            Some(tls) => {
                let tls = ServerConnection::new(Arc::clone(tls)).unwrap();
                Box::new(StreamOwned::new(tls, socket))
            }
            None => Box::new(socket),
        };
        let head = head(&mut stream)?;
        let target = head
            .lines()
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .to_owned();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let query: BTreeMap<&str, &str> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .collect();
        let authorization = head
            .lines()
            .find_map(|line| line.strip_prefix("Authorization: "));
        let verb = if query.contains_key("watch") {
            "watch"
        } else {
            "list"
        };
        self.state().requests.push(format!("{verb} {path}"));
        if let Fault::Raw(bytes) = fault {
            stream.write_all(&bytes)?;
            return stream.flush();
        }
        let state = self.state();
        if state.token.is_some() && state.token.as_deref() != authorization {
            drop(state);
            let status = json!({ "kind": "Status", "code": 401, "message": "Unauthorized" });
            return answer(&mut stream, "401 Unauthorized", &status);
        }
        drop(state);
        match verb {
            "watch" => self.watch(&mut stream, path, &query),
            _ => self.list(&mut stream, path, &query),
        }
    }

    fn list(
        &self,
        stream: &mut dyn Stream,
        path: &str,
        query: &BTreeMap<&str, &str>,
    ) -> io::Result<()> {
        let state = self.state();
        let limit: usize = query["limit"].parse().unwrap();
        let from: usize = query
            .get("continue")
            .map_or(0, |from| from.parse().unwrap());
        let all = state.objects.iter().filter(|((of, _), _)| *of == path);
        // Objects in a list have no kind.
        let all: Vec<&Value> = all.map(|(_, object)| object).collect();
        let page: Vec<&Value> = all.iter().skip(from).take(limit).copied().collect();
        let next = from + page.len();
        let next = if next < all.len() {
            next.to_string()
        } else {
            String::new()
        };
        let list = json!({
            "kind": "List", "apiVersion": "v1", "items": page,
            "metadata": { "resourceVersion": state.version.to_string(), "continue": next },
        });
        let is_slow = state.fault == Fault::Slow;
        drop(state);
        match is_slow {
            true => answer(&mut SlowWriter(stream), "200 OK", &list),
            false => answer(stream, "200 OK", &list),
        }
    }

    fn watch(
        &self,
        stream: &mut dyn Stream,
        path: &str,
        query: &BTreeMap<&str, &str>,
    ) -> io::Result<()> {
        let mut at: u64 = query["resourceVersion"].parse().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        stream.flush()?;
        let mut state = self.state();
        if at < state.oldest {
            drop(state);
            let gone = json!({ "type": "ERROR", "object": { "kind": "Status", "code": 410,
                "message": "too old resource version" } });
            return chunk(stream, &format!("{gone}\n"));
        }
        loop {
            let new = state
                .events
                .iter()
                .filter(|(version, of, _)| *version > at && *of == path);
            let new: Vec<String> = new.map(|(_, _, line)| line.clone()).collect();
            at = state.version;
            let (fault, is_over) = (state.fault.clone(), state.is_over);
            drop(state);
            for line in &new {
                match &fault {
                    Fault::HalfEvents => {
                        chunk(stream, &line[..line.len() / 2])?;
                        return Ok(());
                    }
                    Fault::Slow => chunk(&mut SlowWriter(stream), line)?,
                    _ => chunk(stream, line)?,
                }
            }
            if let Fault::Line(line) = &fault {
                chunk(stream, &format!("{line}\n"))?;
            }
            if is_over {
                return Ok(());
            }
            let version = at.to_string();
            let bookmark = json!({ "type": "BOOKMARK", "object": {
                "metadata": { "resourceVersion": version } } });
            if new.is_empty() {
                // This also detects that the client has disconnected.
                chunk(stream, &format!("{bookmark}\n"))?;
            }
            state = self.state();
            if state.version == at {
                let wait = Duration::from_millis(200);
                state = self.changed.wait_timeout(state, wait).unwrap().0;
            }
        }
    }
}

/// Sends a few bytes at a time.
struct SlowWriter<'a>(&'a mut dyn Stream);

impl Read for SlowWriter<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to)
    }
}

impl Write for SlowWriter<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let n = from.len().min(16);
        self.0.write_all(&from[..n])?;
        self.0.flush()?;
        thread::sleep(Duration::from_micros(200));
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn head(stream: &mut Box<dyn Stream>) -> io::Result<String> {
    let mut head = String::new();
    let mut reader = BufReader::new(stream);
    loop {
        if reader.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if head.ends_with("\r\n\r\n") {
            return Ok(head);
        }
    }
}

fn answer(stream: &mut dyn Stream, status: &str, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let length = body.len();
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

fn chunk(stream: &mut dyn Stream, text: &str) -> io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())?;
    stream.flush()
}
