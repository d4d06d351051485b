//! The machine that containers are guests of, by its control socket, each question with a deadline.

use crate::failure::{Code, Failure};
use abi::machine::{Attached, BEING_DETACHED, Control, Detached, Setting, Status};
use client::{Error, ask};
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Within this it says that it is there, or counts as away. One that does not run is away at once;
/// one that runs may be attaching many.
const READY: Duration = Duration::from_secs(5);
/// It gives up a guest that does not come after 20 s by itself, and takes it back.
const ATTACH: Duration = Duration::from_secs(25);
/// It answers after 20 s at the latest.
const DETACH: Duration = Duration::from_secs(22);

/// Between two looks at a guest that another request detaches.
const LOOK: Duration = Duration::from_millis(20);

/// A machine, there or not.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Its control socket.
    pub(crate) socket: PathBuf,
}

impl Machine {
    /// Its guests' names, at once or not at all.
    pub(crate) fn guests(&self) -> Result<Vec<String>, Error> {
        self.guests_within(READY)
    }

    fn guests_within(&self, limit: Duration) -> Result<Vec<String>, Error> {
        let status: Status = self.ask(&Control::Status, limit)?;
        if status.up_took_ns.is_none() {
            return Err(Error::Refused("the machine is still starting".to_owned()));
        }
        let domains = status.domains.into_iter();
        Ok(domains.map(|domain| domain.report.name).collect())
    }

    /// Whether it has a guest of this name, at once or not at all.
    pub(crate) fn has(&self, guest: &str) -> Result<bool, Error> {
        Ok(self.guests()?.iter().any(|name| name == guest))
    }

    /// Attaches a guest; returns when it is up.
    pub(crate) fn attach(&self, guest: Setting) -> Result<Attached, Error> {
        self.ask(&Control::Attach { guest }, ATTACH)
    }

    /// Takes a guest away; whether it was there. Nothing is left of it then but, for an instant,
    /// its interface.
    pub(crate) fn detach(&self, guest: &str) -> Result<bool, Error> {
        self.detach_by(guest, Instant::now() + DETACH)
    }

    /// As [`Machine::detach`], until a time that may come before the machine answers.
    pub(crate) fn detach_by(&self, guest: &str, end: Instant) -> Result<bool, Error> {
        let left = || end.saturating_duration_since(Instant::now());
        let has = || -> Result<bool, Error> {
            let guests = self.guests_within(left().min(READY))?;
            Ok(guests.iter().any(|name| name == guest))
        };
        if !has()? {
            return Ok(false);
        }
        let domain = guest.to_owned();
        let detached: Result<Detached, Error> = self.ask(&Control::Detach { domain }, left());
        let Err(error) = detached else {
            return Ok(true);
        };
        let is_another_s = matches!(&error, Error::Refused(why) if why.contains(BEING_DETACHED));
        // It may leave by itself, with its namespace, or by another request.
        while has()? {
            if !is_another_s || left().is_zero() {
                return Err(error);
            }
            thread::sleep(LOOK);
        }
        Ok(true)
    }

    fn ask<T: DeserializeOwned>(&self, control: &Control, limit: Duration) -> Result<T, Error> {
        ask(&self.socket, control, limit)
    }

    /// The failure of a call while the machine does not answer: not ready, or try again later.
    pub(crate) fn away(&self, code: Code, error: Error) -> Failure {
        let socket = self.socket.display();
        let msg =
            format!("no machine answers at {socket}: start one with `grantway up`, then try again");
        Failure::new(code, msg).because(error)
    }
}
