//! Makes the command's network namespace visible to other processes through a thread of this
//! process inside it. When this process exits for any reason, the path disappears, and a running
//! machine detaches the command.
//!
//! A descriptor would not suffice: netd as root without the right to override file modes cannot
//! open this process's folder of descriptors.

use netdev::netns::Namespace;
use rustix::thread::{LinkNameSpaceType, gettid, move_into_link_name_space};
use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// The thread inside the namespace. It exits when this value is dropped.
pub(super) struct NetnsHolder {
    path: String,
    _stays: Sender<()>,
}

impl NetnsHolder {
    pub(super) fn new(netns: &Namespace) -> io::Result<Self> {
        let netns = netns.as_fd().try_clone_to_owned()?;
        let (stays, leaves) = channel();
        let (result_sender, result) = channel();
        let thread = thread::Builder::new().name("netns-holder".to_owned());
        thread.spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            let moved = move_into_link_name_space(netns.as_fd(), kind);
            drop(netns);
            // The receiver exists, because it waits for the result.
            let _ = result_sender.send(moved.map(|()| gettid()));
            // This call returns only when the sender is dropped.
            let _: Result<(), _> = leaves.recv();
        })?;
        let thread = result.recv().map_err(io::Error::other)??;
        Ok(Self {
            path: format!(
                "/proc/{}/task/{}/ns/net",
                std::process::id(),
                thread.as_raw_nonzero()
            ),
            _stays: stays,
        })
    }

    /// Returns the path of the namespace.
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
    fn the_path_is_valid_while_the_thread_lives() {
        require!(root);
        let netns = Namespace::new().unwrap();
        let netns_holder = NetnsHolder::new(&netns).unwrap();
        let path = netns_holder.path();
        let name = |path: &str| fs::read_link(path).unwrap();
        let inside = netns.enter(|| name("/proc/thread-self/ns/net")).unwrap();
        assert_eq!(name(&path), inside);
        assert_ne!(inside, name("/proc/thread-self/ns/net"));
        drop(netns_holder);
        wait_until("the thread still runs", || fs::read_link(&path).is_err());
    }
}
