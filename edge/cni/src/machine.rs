//! The machine to which containers are attached, accessed through its control socket. Each request
//! has a deadline.

use crate::error::{CniError, ErrorCode};
use abi::machine::{AttachReply, BEING_DETACHED, ConfigValue, ControlRequest, DetachReply, Status};
use client::{Error, send_request};
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// A machine that does not answer within this time counts as absent. If no machine is running,
/// requests fail immediately; a running machine may be attaching many guests.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// Deadline of an attachment: longer than the 20 s after which the machine itself gives up and
/// detaches the guest.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(25);
/// Deadline of a detachment: longer than the 20 s within which the machine answers.
const DETACH_TIMEOUT: Duration = Duration::from_secs(22);

/// Interval between checks for a guest that another request is detaching.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A machine, which may not be running.
#[derive(Clone, Debug)]
pub(crate) struct MachineClient {
    /// Its control socket.
    pub(crate) socket: PathBuf,
}

impl MachineClient {
    /// Returns the names of the machine's guests, without waiting for a machine that is still
    /// starting.
    pub(crate) fn guests(&self) -> Result<Vec<String>, Error> {
        self.guests_within(READY_TIMEOUT)
    }

    /// Returns the machine's status, without waiting for a machine that is still starting.
    pub(crate) fn status(&self) -> Result<Status, Error> {
        self.status_within(READY_TIMEOUT)
    }

    fn status_within(&self, limit: Duration) -> Result<Status, Error> {
        let status: Status = self.request(&ControlRequest::Status, limit)?;
        match status.up_took_ns {
            Some(_) => Ok(status),
            None => Err(Error::Refused("the machine is still starting".to_owned())),
        }
    }

    fn guests_within(&self, limit: Duration) -> Result<Vec<String>, Error> {
        let status = self.status_within(limit)?;
        let domains = status.domains.into_iter();
        Ok(domains.map(|domain| domain.report.name).collect())
    }

    /// Returns whether the machine has a guest of this name, without waiting for a machine that is
    /// still starting.
    pub(crate) fn has(&self, guest: &str) -> Result<bool, Error> {
        Ok(self.guests()?.iter().any(|name| name == guest))
    }

    /// Attaches a guest; returns when it is connected.
    pub(crate) fn attach(&self, guest: ConfigValue) -> Result<AttachReply, Error> {
        self.request(&ControlRequest::Attach { guest }, ATTACH_TIMEOUT)
    }

    /// Detaches a guest; returns whether it existed. Afterwards only the guest's interface may
    /// still exist for a moment.
    pub(crate) fn detach(&self, guest: &str) -> Result<bool, Error> {
        self.detach_by(guest, Instant::now() + DETACH_TIMEOUT)
    }

    /// Like [`MachineClient::detach`], with a deadline that may pass before the machine answers.
    pub(crate) fn detach_by(&self, guest: &str, end: Instant) -> Result<bool, Error> {
        let left = || end.saturating_duration_since(Instant::now());
        let has = || -> Result<bool, Error> {
            let guests = self.guests_within(left().min(READY_TIMEOUT))?;
            Ok(guests.iter().any(|name| name == guest))
        };
        if !has()? {
            return Ok(false);
        }
        let domain = guest.to_owned();
        let detached: Result<DetachReply, Error> =
            self.request(&ControlRequest::Detach { domain }, left());
        let Err(error) = detached else {
            return Ok(true);
        };
        let is_another_s = matches!(&error, Error::Refused(why) if why.contains(BEING_DETACHED));
        // The guest may also disappear with its namespace or by another request.
        while has()? {
            if !is_another_s || left().is_zero() {
                return Err(error);
            }
            thread::sleep(CHECK_INTERVAL);
        }
        Ok(true)
    }

    fn request<T: DeserializeOwned>(
        &self,
        control: &ControlRequest,
        limit: Duration,
    ) -> Result<T, Error> {
        send_request(&self.socket, control, limit)
    }

    /// Returns the failure of a call if the machine does not answer: `code` is either "not ready"
    /// or "try again later".
    pub(crate) fn unavailable_error(&self, code: ErrorCode, error: Error) -> CniError {
        let socket = self.socket.display();
        let msg =
            format!("no machine answers at {socket}: start one with `grantway up`, then try again");
        CniError::new(code, msg).with_details(error)
    }
}
