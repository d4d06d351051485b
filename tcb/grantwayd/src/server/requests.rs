//! The manager's requests to the core, and their answers.

use super::Core;
use super::handles::copies;
use crate::control::identify;
use abi::DomId;
use abi::core::{
    CoreMessage, CoreRequest, CoreStatus, Field, NewDomain, STATE_BYTES_MAX, Stage, encode_report,
};
use abi::layout::info;
use abi::status::Program;
use link::{Received, sealed};
use monitor::StartSpec;
use rustix::fs::fcntl_get_seals;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Maximum number of descriptors that the core keeps for managers: the sockets for requests and
/// metrics, and the log.
const HELD_MAX: usize = 5;

/// The answer to a request: a number and the attached descriptors, or `None` if it follows later.
pub(super) type RequestResult = Result<Option<(u64, Vec<OwnedFd>)>, RequestError>;

/// Reason why a request failed.
#[derive(Debug)]
pub(super) struct RequestError {
    pub(super) why: String,
    /// Whether a retry may succeed.
    pub(super) is_busy: bool,
}

impl<E: ToString> From<E> for RequestError {
    fn from(error: E) -> Self {
        let (why, is_busy) = (error.to_string(), false);
        Self { why, is_busy }
    }
}

pub(super) fn value(value: u64, fds: Vec<OwnedFd>) -> RequestResult {
    Ok(Some((value, fds)))
}

fn report(name: &str, report: &impl Field) -> RequestResult {
    value(0, vec![sealed::write(name, &encode_report(report))?])
}

pub(super) fn done() -> RequestResult {
    value(0, Vec::new())
}

impl Core {
    /// Answers the request with this token.
    pub(super) fn answer(&mut self, token: u32, answer: RequestResult) {
        match answer {
            Ok(None) => {}
            Ok(Some((value, fds))) => self.send_to_manager(token, CoreMessage::Done { value }, fds),
            Err(RequestError { why, is_busy }) => {
                let why = sealed::write("why", why.as_bytes());
                let attachments = why.into_iter().collect();
                self.send_to_manager(token, CoreMessage::Refused { is_busy }, attachments);
            }
        }
    }

    /// Executes a request of the manager.
    pub(super) fn handle_request(&mut self, received: Received<CoreRequest>) {
        let Received { record, fds } = received;
        let answer = self.carry_out(record.token, record.message, fds);
        self.answer(record.token, answer);
    }

    fn carry_out(&mut self, token: u32, request: CoreRequest, fds: Vec<OwnedFd>) -> RequestResult {
        match request {
            // The state of a machine that is shutting down must remain complete for its next start.
            CoreRequest::Open { .. }
            | CoreRequest::GiveSocket { .. }
            | CoreRequest::SaveState {}
                if self.ending.is_some() =>
            {
                return Err("the machine is shutting down".into());
            }
            CoreRequest::Open { dev } => return self.open(token, dev, fds),
            CoreRequest::Close { dev } if self.devs.has_dev(dev) => {
                return self.close(token, dev);
            }
            // The device does not exist, so closing it succeeds.
            CoreRequest::Close { .. } => {}
            CoreRequest::GiveSocket { socket } => return self.give_socket(token, socket, fds),
            CoreRequest::Create { domain } => return self.create(domain, &fds),
            CoreRequest::Start { domain } => return self.start_domain(domain),
            CoreRequest::GiveDevice {
                domain,
                dev,
                place,
                controls,
            } => return self.give(domain, dev, place, controls),
            CoreRequest::Connect {
                backend,
                frontend,
                handle,
            } => {
                let (back, front) = self.hypervisor.connect(backend, frontend, handle)?;
                return value(u64::from(back.0) << 32 | u64::from(front.0), Vec::new());
            }
            CoreRequest::Status {} => return report("status", &self.status()),
            CoreRequest::Audit {} => return report("audit", &self.hypervisor.audit()),
            CoreRequest::SkipDevice { domain } => self.hypervisor.give_device(domain, None)?,
            CoreRequest::Abandon { domain, why } => self.hypervisor.abandon(domain, why.as_str()),
            CoreRequest::Kill { domain, why } => self.hypervisor.kill(domain, why.as_str()),
            CoreRequest::NotifyMailbox { domain } => self.hypervisor.notify_mailbox(domain),
            CoreRequest::KeepStateFile {} => {
                // The manager continues to write this file; only the next manager reads it.
                let kept = attachment(&fds)?;
                fcntl_get_seals(kept).map_err(|_| "the manager's journal is not a memory file")?;
                self.kept = Some(kept.try_clone()?);
            }
            CoreRequest::KeepDescriptors {} => {
                // Accepted only from the first manager. A later, compromised manager could
                // otherwise pass descriptors that its successor would trust.
                if !self.held.is_empty() || !(1..=HELD_MAX).contains(&fds.len()) {
                    return Err(
                        "the core already holds sockets and log, or too many were passed".into(),
                    );
                }
                // Clients see the credentials of the last caller of listen(2). The core calls
                // listen(2), because managers may be replaced.
                rustix::net::listen(attachment(&fds)?, -1)?;
                self.held = fds;
                self.sockets = self.args.sockets().map(identify).collect();
            }
            CoreRequest::SaveState {} => {
                let bytes = sealed::read(attachment(&fds)?, STATE_BYTES_MAX)?;
                let path = self.args.state.as_ref();
                path.map_or(Ok(()), |path| crate::state::write(path, &bytes))?;
            }
            CoreRequest::Forget { domain } => self.forget(domain)?,
            CoreRequest::End { failed } => {
                if failed {
                    self.failure = Some(None);
                }
                self.ending.get_or_insert(Some(token));
                return Ok(None);
            }
        }
        done()
    }

    /// Returns the status of all domains and connections.
    fn status(&mut self) -> CoreStatus {
        let missing = self.hypervisor.missing.iter();
        CoreStatus {
            missing: missing.map(|&what| what.to_owned()).collect(),
            cpu_ns: sandbox::cpu_ns(std::process::id() as i32).unwrap_or(0),
            netd_cpu_ns: self.netd.cpu_ns(),
            domains: self.hypervisor.domain_status(),
            connections: self.hypervisor.connection_status(),
        }
    }

    pub(super) fn create(&mut self, domain: NewDomain, fds: &[OwnedFd]) -> RequestResult {
        // `create_domain` rejects a configuration beyond CONFIG_MAX, with the domain's name.
        let config = sealed::read(attachment(fds)?, 2 * info::CONFIG_MAX)?;
        let replaces = domain.replaces;
        let is_driver = domain.program == Program::Driver;
        let inherited = replaces.filter(|_| is_driver);
        let inherited = inherited.and_then(|dead| self.retained_frames(dead));
        let id = self.hypervisor.create_domain(domain, &config, inherited)?;
        replaces.inspect(|&dead| self.assign_sockets(dead, id));
        replaces.and_then(|dead| self.known.remove(&dead));
        let memory = self.hypervisor.memory(id).filter(|_| is_driver);
        self.known.entry(id).or_default().retained =
            memory.map(|memory| Arc::clone(&memory.frames));
        value(id.0.into(), Vec::new())
    }

    /// Starts a domain's process. The core keeps the reading end of the console, so that a write
    /// never fails. The domain's end is non-blocking, so that a full console does not block the
    /// domain.
    fn start_domain(&mut self, id: DomId) -> RequestResult {
        if self.ending.is_some() {
            // The shutdown has already killed all domains, and would wait for this one.
            return Err("the machine is shutting down".into());
        }
        let console =
            |e: io::Error| format!("domain {}: its console: {e}", self.hypervisor.name(id));
        let (ours, theirs) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|e| console(e.into()))?;
        let attachments = self.manager_descriptors(id, &ours).map_err(console)?;
        let domain = self.hypervisor.domain(id);
        let domain = domain.ok_or("the domain does not exist")?;
        let program = match domain.spec.program {
            Program::Driver => self.args.driver,
            Program::Guest => "guest",
            Program::Device => "device",
        };
        let (program, console) = (self.args.programs.join(program), theirs);
        let start = StartSpec { program, console };
        self.hypervisor.start(id, start)?;
        let known = self.known.entry(id).or_default();
        (known.console, known.is_unconnected) = (Some(ours), true);
        value(0, attachments)
    }

    /// Returns a running domain's descriptors for the manager: its console and its mailbox.
    pub(super) fn manager_descriptors(
        &self,
        id: DomId,
        console: &OwnedFd,
    ) -> io::Result<Vec<OwnedFd>> {
        let mailbox = self.hypervisor.memory(id).map(|memory| memory.mailbox.fd());
        copies([console.as_fd()].into_iter().chain(mailbox))
    }

    /// Removes a domain that has no process and no page in another domain's window.
    pub(super) fn forget(&mut self, id: DomId) -> Result<(), RequestError> {
        let stage = self
            .hypervisor
            .domain(id)
            .map(|domain| domain.liveness.stage);
        if stage != Some(Stage::TornDown) || self.hypervisor.is_used(id) {
            let name = self.hypervisor.name(id);
            let why = format!("{name}: some of its pages are still in use");
            let is_busy = stage.is_some_and(Stage::is_over);
            return Err(RequestError { why, is_busy });
        }
        self.known.remove(&id);
        self.lasting.retain(|_, bound| bound.socket.domain != id);
        Ok(self.hypervisor.forget(id)?)
    }
}

/// Returns the first descriptor attached to a request.
pub(super) fn attachment(fds: &[OwnedFd]) -> Result<&OwnedFd, RequestError> {
    fds.first()
        .ok_or_else(|| "the request has no attached descriptor".into())
}
