//! Where another process finds the command's network namespace: by a thread of this process that is
//! in it. When this process ends, however that is, nothing is found there any more, which is how a
//! machine that runs knows that the command has gone.
//!
//! Not by a descriptor: the folder of these is closed to a netd that is root and may not pass over
//! the modes of files.

use netdev::netns::Namespace;
use rustix::thread::{LinkNameSpaceType, gettid, move_into_link_name_space};
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// The thread; it ends with this.
pub(super) struct Anchor {
    path: String,
    _stays: Sender<()>,
}

impl Anchor {
    pub(super) fn new(netns: &Namespace) -> io::Result<Self> {
        let netns = netns.as_fd().try_clone_to_owned()?;
        let (stays, leaves) = channel();
        let (tell, told) = channel();
        let thread = thread::Builder::new().name("anchor".to_owned());
        thread.spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            let moved = move_into_link_name_space(netns.as_fd(), kind);
            drop(netns);
            // Who asks waits for it.
            let _ = tell.send(moved.map(|()| gettid()));
            // Nothing is ever sent.
            let _: Result<(), _> = leaves.recv();
        })?;
        let thread = told.recv().map_err(io::Error::other)??;
        Ok(Self {
            path: format!(
                "/proc/{}/task/{}/ns/net",
                std::process::id(),
                thread.as_raw_nonzero()
            ),
            _stays: stays,
        })
    }

    /// The path of the namespace.
    pub(super) fn path(&self) -> String {
        self.path.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use testing::{require, wait_until};

    #[test]
    fn a_namespace_is_found_as_long_as_the_anchor_is_there() {
        require!(root);
        let netns = Namespace::new().unwrap();
        let anchor = Anchor::new(&netns).unwrap();
        let path = anchor.path();
        let name = |path: &str| fs::read_link(path).unwrap();
        let inside = netns.enter(|| name("/proc/thread-self/ns/net")).unwrap();
        assert_eq!(name(&path), inside);
        assert_ne!(inside, name("/proc/thread-self/ns/net"));
        drop(anchor);
        wait_until("the thread has stayed", || fs::read_link(&path).is_err());
    }
}
