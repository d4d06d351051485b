//! How a machine ends: in order, told to come back, or without a word.

use crate::control::ask;
use crate::process::{children, is_over, wait_child, wait_until};
use crate::{Error, Instance, metrics};
use abi::machine::{Control, Ended};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// How long an orderly end may take.
const DOWN: Duration = Duration::from_secs(30);
/// How long the processes of a machine may be there when its core is not.
const OVER: Duration = Duration::from_secs(10);

impl Instance {
    /// End every domain and the monitor, and wait until they are gone.
    ///
    /// # Errors
    /// The monitor does not answer: one that this value started is killed all the same. Or it has
    /// ended, and what was attached could not be forgotten ([`Error::NotForgotten`]).
    pub fn down(mut self) -> Result<(), Error> {
        self.end(DOWN)
    }

    /// The same, but what was attached is attached again by the next start, if it is left
    /// (`Options::leaves`). Only of one that ends with this value.
    ///
    /// # Errors
    /// It has not ended in order, or not in time: it is killed then.
    pub fn stop(mut self) -> Result<(), Error> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        // If it has ended, that is what is wanted.
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        let in_time = wait_child(&mut child, DOWN);
        if !in_time {
            let _ = child.kill();
        }
        let ended = child.wait();
        if ended.as_ref().is_ok_and(ExitStatus::success) {
            return Ok(());
        }
        self.remove_sockets();
        if in_time {
            let how = ended.map_or_else(|e| e.to_string(), |status| status.to_string());
            let e = io::Error::other(format!("it has ended out of order ({how})"));
            return Err(Error::io("end the monitor", e));
        }
        Err(Error::Late {
            what: "the end of the monitor".to_owned(),
            limit: DOWN,
            hint: String::new(),
        })
    }

    /// Kill the monitor, and wait until nobody of its machine is left: what is persistent stays,
    /// for the next start. Only of one that ends with this value.
    ///
    /// # Errors
    /// The monitor does not answer, or somebody is left after some seconds.
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
        let are_over = || pids.iter().all(|pid| is_over(*pid));
        let is_over = wait_until(OVER, are_over);
        self.remove_sockets();
        match is_over {
            true => Ok(()),
            false => Err(Error::Late {
                what: "the end of a domain".to_owned(),
                limit: OVER,
                hint: String::new(),
            }),
        }
    }

    /// The process of the core, if it is to be seen from here: what `Status::pid` says is its
    /// number where it runs, and in another PID namespace another process's, or free. The kernel
    /// knows who has said last that the control socket is listened at, which is the core, by the
    /// numbers of this one.
    ///
    /// # Errors
    /// Nobody answers.
    pub fn core_seen(&self) -> Result<Option<u32>, Error> {
        let failed = |e| Error::io(format!("speak to {}", self.socket.display()), e);
        let stream = UnixStream::connect(&self.socket).map_err(failed)?;
        let core = getsockopt(&stream, PeerCredentials).map_err(|e| failed(e.into()))?;
        Ok(u32::try_from(core.pid()).ok().filter(|pid| *pid > 0))
    }

    /// What a core that was killed has left.
    fn remove_sockets(&self) {
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(metrics::path_of(&self.socket));
    }

    /// How the monitor has ended, if it has; only of one that ends with this value.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child
            .as_mut()
            .and_then(|child| child.try_wait().ok().flatten())
    }

    pub(crate) fn end(&mut self, limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        let core = match self.pid {
            Some(pid) => Some(pid),
            None => self.core_seen()?,
        };
        let asked = ask::<Ended>(&self.socket, &Control::Down, limit);
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
                    // Everything dies with the monitor.
                    let _ = child.kill();
                }
                let is_killed = |status: ExitStatus| status.signal().is_some();
                // A core that was killed has left them.
                if child.wait().is_ok_and(is_killed) {
                    self.remove_sockets();
                }
                ended
            }
            None => {
                let is_gone = || match core {
                    Some(core) => is_over(core),
                    None => UnixStream::connect(&self.socket).is_err(),
                };
                asked.is_ok() && wait_until(left, is_gone)
            }
        };
        self.child = None;
        match asked {
            // It was on its way out by itself: the end that we wanted.
            Err(Error::Io { .. }) if ended => Ok(()),
            Err(e) => Err(e),
            Ok(Ended {
                warning: Some(warning),
            }) if ended => Err(Error::NotForgotten(warning)),
            Ok(_) if ended => Ok(()),
            Ok(_) => Err(Error::Late {
                what: "the end of the monitor".to_owned(),
                limit,
                hint: String::new(),
            }),
        }
    }
}
