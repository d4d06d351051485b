//! Stops a machine: cleanly, cleanly with its guests recorded for the next start, or by force.

use crate::control::send_request;
use crate::process::{children, has_exited, wait_child, wait_for};
use crate::runtime::{clear_stale, remove_sockets};
use crate::{Error, Instance};
use abi::machine::{ControlRequest, DownReply};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// Time limit of a clean shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the processes of a machine to exit after its core.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

impl Instance {
    /// Ends every domain and the monitor, and waits until they have exited.
    ///
    /// # Errors
    ///
    /// Returns an error if the monitor does not answer. In this case the monitor is killed if this
    /// value has started it. Returns [`Error::StateNotRemoved`] if the machine has stopped, but the
    /// record of its attached guests could not be removed.
    pub fn down(mut self) -> Result<(), Error> {
        self.end(SHUTDOWN_TIMEOUT)
    }

    /// Like [`Instance::down`], but the next start attaches the attached guests again, if they are
    /// recorded (`StartOptions::leaves`). Does nothing if the machine outlives this value.
    ///
    /// # Errors
    ///
    /// Returns an error if the machine did not stop cleanly or in time; it is then killed.
    pub fn stop(mut self) -> Result<(), Error> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        // The machine may have stopped already.
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        let in_time = wait_child(&mut child, SHUTDOWN_TIMEOUT);
        if !in_time {
            let _ = child.kill();
        }
        let ended = child.wait();
        if ended.as_ref().is_ok_and(ExitStatus::success) {
            return Ok(());
        }
        remove_sockets(&self.socket);
        if in_time {
            let how = ended.map_or_else(|e| e.to_string(), |status| status.to_string());
            let e = io::Error::other(format!("it has not ended in order ({how})"));
            return Err(Error::io("end the monitor", e));
        }
        Err(Error::TimedOut {
            what: "the end of the monitor".to_owned(),
            limit: SHUTDOWN_TIMEOUT,
            hint: String::new(),
        })
    }

    /// Kills the monitor, and waits until every process of its machine has exited. Persistent
    /// interfaces stay for the next start. Does nothing if the machine outlives this value.
    ///
    /// # Errors
    ///
    /// Returns an error if the monitor does not answer, or a process remains after some seconds.
    pub fn abandon(mut self) -> Result<(), Error> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        let agents = self
            .status()
            .map_or_else(|_| Vec::new(), |status| status.domains);
        let agents = agents.iter().map(|domain| domain.agent_pid);
        let agents = agents.filter_map(|pid| u32::try_from(pid).ok());
        let pids: Vec<u32> = agents.chain(children(child.id())).collect();
        let _ = child.kill();
        let _ = child.wait();
        let are_over = || pids.iter().all(|pid| has_exited(*pid));
        let is_over = wait_for(EXIT_TIMEOUT, are_over);
        remove_sockets(&self.socket);
        match is_over {
            true => Ok(()),
            false => Err(Error::TimedOut {
                what: "the end of a domain".to_owned(),
                limit: EXIT_TIMEOUT,
                hint: String::new(),
            }),
        }
    }

    /// Returns the core's process id in this PID namespace, if the core is visible here.
    /// `Status::pid` is valid only in the core's own PID namespace. The kernel reports the id of
    /// the last process that called listen(2) on the control socket: the core.
    ///
    /// # Errors
    ///
    /// Returns an error if no process answers.
    pub fn visible_core_pid(&self) -> Result<Option<u32>, Error> {
        let failed = |e| Error::io(format!("connect to {}", self.socket.display()), e);
        let stream = UnixStream::connect(&self.socket).map_err(failed)?;
        let core = getsockopt(&stream, PeerCredentials).map_err(|e| failed(e.into()))?;
        Ok(u32::try_from(core.pid()).ok().filter(|pid| *pid > 0))
    }

    /// Returns the monitor's exit status. Returns `None` if the monitor has not exited, or outlives
    /// this value.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .as_mut()
            .and_then(|child| child.try_wait().ok().flatten())
    }

    pub(crate) fn end(&mut self, limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        if let Some(status) = self.ended() {
            // The control socket may belong to the next machine of this name already.
            let is_killed = status.signal().is_some();
            if is_killed && clear_stale(&self.socket, self.name(), EXIT_TIMEOUT).is_ok() {
                remove_sockets(&self.socket);
            }
            self.child = None;
            return Ok(());
        }
        let core = match self.pid {
            Some(pid) => Some(pid),
            None => self.visible_core_pid()?,
        };
        let asked = send_request::<DownReply>(&self.socket, &ControlRequest::Down, limit);
        let left = limit.saturating_sub(start.elapsed());
        let ended = match &mut self.child {
            Some(child) => {
                let wait = if asked.is_ok() {
                    left
                } else {
                    Duration::from_millis(100)
                };
                let ended = wait_child(child, wait);
                if !ended {
                    // All processes of the machine exit with the monitor.
                    let _ = child.kill();
                }
                let is_killed = |status: ExitStatus| status.signal().is_some();
                // A killed core has not removed its sockets.
                if child.wait().is_ok_and(is_killed) {
                    remove_sockets(&self.socket);
                }
                ended
            }
            None => {
                let is_gone = || match core {
                    Some(core) => has_exited(core),
                    None => UnixStream::connect(&self.socket).is_err(),
                };
                asked.is_ok() && wait_for(left, is_gone)
            }
        };
        self.child = None;
        match asked {
            // The monitor was already exiting by itself.
            Err(Error::Io { .. }) if ended => Ok(()),
            Err(e) => Err(e),
            Ok(DownReply {
                warning: Some(warning),
            }) if ended => Err(Error::StateNotRemoved(warning)),
            Ok(_) if ended => Ok(()),
            Ok(_) => Err(Error::TimedOut {
                what: "the end of the monitor".to_owned(),
                limit,
                hint: String::new(),
            }),
        }
    }
}
