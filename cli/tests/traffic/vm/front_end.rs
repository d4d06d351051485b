//! A mock virtual machine monitor, whose guest answers pings.

use crate::machine::grantway;
use std::path::Path;
use std::process::{Command, Stdio};
use testing::Running;

/// A running monitor, which is killed when this value is dropped.
pub(super) struct FrontEnd(Running);

impl FrontEnd {
    /// Starts a monitor for a socket.
    pub(super) fn start(socket: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(grantway().with_file_name("hostile-vm"));
        let command = command.arg(socket).args(words).stdin(Stdio::null());
        Self(Running::new(command.spawn().unwrap()))
    }

    pub(super) fn pid(&self) -> u64 {
        self.0.pid().into()
    }
}
