//! What the manager asks of the core, and what it is answered.

use super::Core;
use super::units::copies;
use crate::control::named;
use abi::DomId;
use abi::core::{Ask, CoreStatus, Field, LEFT_MAX, NewDomain, Stage, Tell, report_bytes};
use abi::layout::info;
use abi::status::Program;
use link::{Received, sealed};
use monitor::Start;
use rustix::fs::fcntl_get_seals;
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Descriptors that a manager may have held: sockets for requests and metrics, the log.
const HELD_MAX: usize = 5;

/// What an ask is answered: a number, and what travels beside it. None: that comes later.
pub(super) type Answer = Result<Option<(u64, Vec<OwnedFd>)>, Refusal>;

/// Why something was not done.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) why: String,
    /// Whether it may go later.
    pub(super) is_busy: bool,
}

impl<E: ToString> From<E> for Refusal {
    fn from(error: E) -> Self {
        let (why, is_busy) = (error.to_string(), false);
        Self { why, is_busy }
    }
}

pub(super) fn value(value: u64, fds: Vec<OwnedFd>) -> Answer {
    Ok(Some((value, fds)))
}

fn report(name: &str, report: &impl Field) -> Answer {
    value(0, vec![sealed::write(name, &report_bytes(report))?])
}

pub(super) fn done() -> Answer {
    value(0, Vec::new())
}

impl Core {
    /// Answers who has asked with `token`.
    pub(super) fn answer(&mut self, token: u32, answer: Answer) {
        match answer {
            Ok(None) => {}
            Ok(Some((value, fds))) => self.tell(token, Tell::Done { value }, fds),
            Err(Refusal { why, is_busy }) => {
                let why = sealed::write("why", why.as_bytes());
                let beside = why.into_iter().collect();
                self.tell(token, Tell::Refused { is_busy }, beside);
            }
        }
    }

    /// Carries out what the manager asks.
    pub(super) fn ask(&mut self, received: Received<Ask>) {
        let Received { record, fds } = received;
        let answer = self.carry_out(record.token, record.message, fds);
        self.answer(record.token, answer);
    }

    fn carry_out(&mut self, token: u32, ask: Ask, fds: Vec<OwnedFd>) -> Answer {
        match ask {
            // Who ends with the machine is not to be missing when it is started again.
            Ask::Open { .. } | Ask::GiveSocket { .. } | Ask::Leave {} if self.ending.is_some() => {
                return Err("the machine ends".into());
            }
            Ask::Open { unit } => return self.open(token, unit, fds),
            Ask::Close { unit } if self.units.knows(unit) => return self.close(token, unit),
            // There is nothing to close.
            Ask::Close { .. } => {}
            Ask::GiveSocket { socket } => return self.give_socket(token, socket, fds),
            Ask::Create { domain } => return self.create(domain, &fds),
            Ask::Start { domain } => return self.start_domain(domain),
            Ask::Give {
                domain,
                unit,
                place,
                told,
            } => return self.give(domain, unit, place, told),
            Ask::Connect {
                backend,
                frontend,
                handle,
            } => {
                let (back, front) = self.hypervisor.connect(backend, frontend, handle)?;
                return value(u64::from(back.0) << 32 | u64::from(front.0), Vec::new());
            }
            Ask::Status {} => return report("status", &self.status()),
            Ask::Audit {} => return report("audit", &self.hypervisor.audit()),
            Ask::GiveNothing { domain } => self.hypervisor.give_device(domain, None)?,
            Ask::GiveUp { domain, why } => self.hypervisor.give_up(domain, why.as_str()),
            Ask::Kill { domain, why } => self.hypervisor.kill(domain, why.as_str()),
            Ask::Knock { domain } => self.hypervisor.knock(domain),
            Ask::Keep {} => {
                // The manager goes on writing it: only the next one reads it, and waits for nobody.
                let kept = beside(&fds)?;
                fcntl_get_seals(kept).map_err(|_| "what is to be kept is no file of memory")?;
                self.kept = Some(kept.try_clone()?);
            }
            Ask::Hold {} => {
                // The first manager's alone: what another one gives the next would trust.
                if !self.held.is_empty() || !(1..=HELD_MAX).contains(&fds.len()) {
                    return Err("sockets and log are held already, or are too many".into());
                }
                // The kernel tells clients who has said this last: us, and not a manager, which
                // may go.
                rustix::net::listen(beside(&fds)?, -1)?;
                self.held = fds;
                self.sockets = self.args.sockets().map(named).collect();
            }
            Ask::Leave {} => {
                let bytes = sealed::read(beside(&fds)?, LEFT_MAX)?;
                let path = self.args.state.as_ref();
                path.map_or(Ok(()), |path| crate::state::write(path, &bytes))?;
            }
            Ask::Forget { domain } => self.forget(domain)?,
            Ask::End { failed } => {
                if failed {
                    self.failure = Some(None);
                }
                self.ending.get_or_insert(Some(token));
                return Ok(None);
            }
        }
        done()
    }

    /// Every domain and connection.
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

    pub(super) fn create(&mut self, domain: NewDomain, fds: &[OwnedFd]) -> Answer {
        // A configuration beyond CONFIG_MAX is refused below, with the domain's name.
        let config = sealed::read(beside(fds)?, 2 * info::CONFIG_MAX)?;
        let replaces = domain.replaces;
        let left = replaces.filter(|_| domain.program == Program::Driver);
        let left = left.and_then(|dead| self.left_by(dead));
        let id = self.hypervisor.create_domain(domain, &config, left)?;
        replaces.inspect(|&dead| self.pass_on(dead, id));
        replaces.and_then(|dead| self.known.remove(&dead));
        value(id.0.into(), Vec::new())
    }

    /// Starts a domain's process. Its console's reading end stays here, so that what it writes
    /// never breaks; its own end does not wait, so that a full one does not hold it up.
    fn start_domain(&mut self, id: DomId) -> Answer {
        if self.ending.is_some() {
            // Nobody would end it, and all would wait for it.
            return Err("everything ends".into());
        }
        let console =
            |e: io::Error| format!("domain {}: its console: {e}", self.hypervisor.name(id));
        let (ours, theirs) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|e| console(e.into()))?;
        let beside = self.ways_to(id, &ours).map_err(console)?;
        let domain = self.hypervisor.domain(id);
        let domain = domain.ok_or("there is no such domain")?;
        let program = match domain.spec.program {
            Program::Driver => "driver",
            Program::Guest => "guest",
        };
        let (program, console) = (self.args.programs.join(program), theirs);
        let start = Start { program, console };
        self.hypervisor.start(id, start)?;
        let known = self.known.entry(id).or_default();
        (known.console, known.is_unconnected) = (Some(ours), true);
        value(0, beside)
    }

    /// What the manager has of a domain that runs: its console, and its mailbox.
    pub(super) fn ways_to(&self, id: DomId, console: &OwnedFd) -> io::Result<Vec<OwnedFd>> {
        let mailbox = self.hypervisor.memory(id).map(|memory| memory.mailbox.fd());
        copies([console.as_fd()].into_iter().chain(mailbox))
    }

    /// Forgets a domain of which nothing is left: not in its process, and in no other's window.
    fn forget(&mut self, id: DomId) -> Result<(), Refusal> {
        let stage = self.hypervisor.domain(id).map(|domain| domain.life.stage);
        if stage != Some(Stage::Gone) || self.hypervisor.is_used(id) {
            let name = self.hypervisor.name(id);
            let why = format!("{name}: something of it is still there");
            let is_busy = stage.is_some_and(Stage::is_over);
            return Err(Refusal { why, is_busy });
        }
        self.known.remove(&id);
        self.lasting.retain(|_, bound| bound.socket.domain != id);
        Ok(self.hypervisor.forget(id)?)
    }
}

/// What travels beside an ask.
pub(super) fn beside(fds: &[OwnedFd]) -> Result<&OwnedFd, Refusal> {
    fds.first().ok_or_else(|| "nothing is beside it".into())
}
