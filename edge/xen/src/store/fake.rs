//! An in-memory xenstore for tests: nodes, watches, transactions with conflicts.

use super::client::StoreChannel;
use super::wire::{HEADER, Header, MessageType, texts};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// The xenstore. The test and the client each have a handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeStore(Rc<RefCell<Nodes>>);

#[derive(Debug, Default)]
pub(crate) struct Nodes {
    pub(crate) tree: BTreeMap<String, String>,
    watched: Vec<String>,
    /// Bytes that the client has not read yet.
    out: VecDeque<u8>,
    /// Number of transactions that will end with a conflict.
    pub(crate) conflicts: u32,
    /// Nodes written in a transaction.
    written: Vec<(String, String)>,
    /// Whether answers are withheld.
    pub(crate) silent: bool,
    /// A path that may not be watched.
    pub(crate) unwatchable: Option<String>,
    /// Number of requests.
    pub(crate) asked: usize,
}

impl FakeStore {
    pub(crate) fn nodes(&self) -> std::cell::RefMut<'_, Nodes> {
        self.0.borrow_mut()
    }

    /// Sets a node as another client would.
    pub(crate) fn set(&self, path: &str, value: &str) {
        self.nodes().set(path, value);
    }

    /// Removes a node and those below it, as another client would.
    pub(crate) fn remove(&self, path: &str) {
        self.nodes().remove(path);
    }

    /// Sends a message that answers no pending request.
    pub(crate) fn late(&self, header: Header, payload: &[u8]) {
        let mut nodes = self.nodes();
        nodes.out.extend(header.encode());
        nodes.out.extend(payload);
    }

    pub(crate) fn get(&self, path: &str) -> Option<String> {
        self.nodes().tree.get(path).cloned()
    }
}

impl Nodes {
    fn set(&mut self, path: &str, value: &str) {
        self.tree.insert(path.to_owned(), value.to_owned());
        self.changed(path);
    }

    fn remove(&mut self, path: &str) -> bool {
        let below = format!("{path}/");
        let before = self.tree.len();
        self.tree
            .retain(|node, _| node != path && !node.starts_with(&below));
        self.changed(path);
        before != self.tree.len()
    }

    fn changed(&mut self, path: &str) {
        let notified: Vec<String> = self
            .watched
            .iter()
            .filter(|watched| {
                path == *watched
                    || path.starts_with(&format!("{watched}/"))
                    || watched.starts_with(&format!("{path}/"))
            })
            .cloned()
            .collect();
        for watched in notified {
            let reported = if path.len() < watched.len() {
                &watched
            } else {
                path
            };
            let payload = format!("{reported}\0{watched}\0");
            self.send_message(MessageType::WatchEvent, 0, payload.as_bytes());
        }
    }

    fn send_message(&mut self, kind: MessageType, request: u32, payload: &[u8]) {
        let header = Header {
            kind: kind as u32,
            request,
            transaction: 0,
            length: payload.len() as u32,
        };
        self.out.extend(header.encode());
        self.out.extend(payload);
    }

    fn children(&self, path: &str) -> Option<Vec<String>> {
        let below = format!("{path}/");
        let mut names: Vec<String> = self
            .tree
            .keys()
            .filter_map(|node| node.strip_prefix(&below))
            .filter_map(|rest| rest.split('/').next().map(str::to_owned))
            .collect();
        names.dedup();
        (!names.is_empty() || self.tree.contains_key(path)).then_some(names)
    }

    fn answer(&mut self, header: Header, payload: &[u8]) {
        let mut all = texts(payload);
        let path = all.next().unwrap_or_default();
        let value = all.next().unwrap_or_default();
        drop(all);
        let within = header.transaction != 0;
        self.asked += 1;
        let ok = Ok(b"OK\0".to_vec());
        let answer = match header.kind {
            1 => self.children(&path).ok_or("ENOENT").map(|names| {
                names
                    .iter()
                    .flat_map(|name| [name.as_bytes(), b"\0"].concat())
                    .collect()
            }),
            2 => self
                .tree
                .get(&path)
                .ok_or("ENOENT")
                .map(|value| value.clone().into_bytes()),
            4 if self.unwatchable.as_ref() == Some(&path) => Err("E2BIG"),
            4 => {
                self.watched.push(path.clone());
                self.send_message(
                    MessageType::WatchEvent,
                    0,
                    format!("{path}\0{path}\0").as_bytes(),
                );
                ok
            }
            5 => {
                let before = self.watched.len();
                self.watched.retain(|watched| *watched != path);
                if before == self.watched.len() {
                    Err("ENOENT")
                } else {
                    ok
                }
            }
            6 => Ok(b"7\0".to_vec()),
            7 if path == "T" && self.conflicts > 0 => {
                self.conflicts -= 1;
                self.written.clear();
                Err("EAGAIN")
            }
            7 => {
                let written = std::mem::take(&mut self.written);
                for (node, value) in written.into_iter().filter(|_| path == "T") {
                    self.set(&node, &value);
                }
                ok
            }
            11 if within => {
                self.written.push((path, value));
                ok
            }
            11 => {
                self.set(&path, &value);
                ok
            }
            13 => match self.remove(&path) {
                true => ok,
                false => Err("ENOENT"),
            },
            _ => Err("ENOSYS"),
        };
        if self.silent {
            return;
        }
        match answer {
            Ok(payload) => {
                self.out.extend(
                    Header {
                        length: payload.len() as u32,
                        ..header
                    }
                    .encode(),
                );
                self.out.extend(payload);
            }
            Err(errno) => {
                self.send_message(
                    MessageType::Error,
                    header.request,
                    format!("{errno}\0").as_bytes(),
                );
            }
        }
    }
}

impl StoreChannel for FakeStore {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let (header, payload) = message.split_at(HEADER);
        let header = Header::decode(header.try_into().unwrap()).unwrap();
        assert_eq!(header.length as usize, payload.len());
        self.nodes().answer(header, payload);
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> io::Result<bool> {
        Ok(!self.nodes().out.is_empty())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        for byte in bytes {
            *byte = self
                .nodes()
                .out
                .pop_front()
                .ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        Ok(())
    }
}
