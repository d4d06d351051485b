//! A mock virtual machine monitor, whose guest answers pings.

use crate::machine::grantway;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running monitor, which is killed when this value is dropped.
pub(super) struct FrontEnd(Child);

impl FrontEnd {
    /// Starts a monitor for a socket.
    pub(super) fn start(socket: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(grantway().with_file_name("hostile-vm"));
        let command = command.arg(socket).args(words).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    pub(super) fn pid(&self) -> u64 {
        self.0.id().into()
    }
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
