//! The machine that the command is behind. It is one of the command's own: it comes with the
//! command, and goes with it. Only this module knows that; a machine that runs already would be
//! attached to here.

use super::network::{GUEST, Network};
use super::report::{Findings, Passed};
use abi::machine::Program;
use abi::mailbox::Request;
use anyhow::Context;
use client::{Instance, Options, Reach};
use netdev::netns::Namespace;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;

/// What the command is behind.
pub(super) struct Behind {
    /// None: it has ended.
    instance: Option<Instance>,
    /// Without a name already, so that nothing stays behind.
    log: Option<File>,
}

impl Behind {
    /// Returns when the command's interface is there and carries packets.
    pub(super) fn start(
        name: Option<&str>,
        network: &Network,
        netns: &Namespace,
    ) -> anyhow::Result<Self> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => free_name()?,
        };
        client::check_name(&name)?;
        let machine = network.machine(&name, netns)?;
        let instance = Instance::start(&machine, &Options::default())?;
        let path = instance.log().to_owned();
        let log = File::open(&path).ok();
        // All who write to them have opened them.
        for file in [path.clone(), rotated(path)] {
            let _ = std::fs::remove_file(file);
        }
        Ok(Self {
            instance: Some(instance),
            log,
        })
    }

    /// How it has ended before the command, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.instance.as_mut()?.ended()?;
        self.instance = None;
        let mut text = Vec::new();
        if let Some(log) = &mut self.log {
            // What cannot be read is not told.
            let _ = log.read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rfind(|line| !line.trim().is_empty());
        let last = last.map(|line| format!(": {}", line.trim()));
        Some(match status.success() {
            true => "the machine was ended".to_owned(),
            false => format!(
                "the machine has ended ({status}){}",
                last.unwrap_or_default()
            ),
        })
    }

    /// Who could touch what, and what passed.
    pub(super) fn findings(&self) -> anyhow::Result<Findings> {
        let instance = self.instance.as_ref().context("the machine has ended")?;
        let status = instance.status()?;
        let driver = status.domains.iter().find(|d| d.program == Program::Driver);
        let driver = driver.context("there is no driver domain")?;
        let of_driver = instance.relay(&driver.name, &Request::Stat)?;
        let of_guest = instance.relay(GUEST, &Request::Stat)?;
        Ok(Findings {
            reach: Reach::of(&status, &instance.grants()?),
            passed: Passed::of(&of_driver, &of_guest),
            up_ms: instance.up_ms().unwrap_or(0.0),
        })
    }

    /// Ends it, with everything that was set up for it.
    pub(super) fn end(self) {
        let Some(instance) = self.instance else {
            return;
        };
        if let Err(error) = instance.down() {
            // The command's status counts, not this. Nobody is left to tell if it fails.
            let _ = writeln!(std::io::stderr(), "grantway: going down: {error}");
        }
    }
}

/// The file that a log is rotated to.
fn rotated(log: PathBuf) -> PathBuf {
    let mut name = log.into_os_string();
    name.push(".1");
    name.into()
}

/// `run-PID`, with a number behind it where another namespace's process of the same number has it.
fn free_name() -> anyhow::Result<String> {
    let name = format!("run-{}", std::process::id());
    let taken = client::listed()?;
    let mut names = std::iter::once(name.clone()).chain((2..).map(|n| format!("{name}-{n}")));
    names
        .find(|name| !taken.contains(name))
        .context("no name is free")
}
