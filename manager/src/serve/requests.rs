//! Serves the requests of clients.

use super::edits::{EditOrigin, RestartGoal};
use super::{Deadline, ManagerServer};
use crate::access::{self, Right};
use crate::client::{Client, ClientWait};
use crate::core::CoreError;
use crate::edit::Edit;
use crate::life::Lifecycle;
use crate::mailbox::Reply;
use abi::DomId;
use abi::core::{CoreRequest, CoreStatus, Field, decode_report};
use abi::machine::{Audit, ControlError, ControlRequest, DomainStatus, RelayReply, Status};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Maximum time that a relayed request waits for the domain's replies to earlier requests.
const MAILBOX_TIMEOUT_NS: u64 = 1_500_000_000;
/// Maximum bytes of a status or an audit, far above those of the largest machine.
const REPORT_MAX: usize = 256 << 20;

impl ManagerServer<'_> {
    /// Serves one request of each client, and the requests that waited until the machine was
    /// complete. Further requests of a client wait for the next turn.
    pub(super) fn serve_requests(&mut self, now: u64) {
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            let waits = self.clients.get_mut(&id).map(|client| &mut client.waits);
            if self.complete_ns.is_some()
                && let Some(waits @ ClientWait::Complete(_)) = waits
                && let ClientWait::Complete(request) = std::mem::replace(waits, ClientWait::Nothing)
            {
                self.serve_change(id, request, now);
            }
            if let Some(line) = self.clients.get_mut(&id).and_then(|c| c.next_line()) {
                self.request(id, &line, now);
            }
        }
    }

    fn request(&mut self, id: u64, line: &[u8], now: u64) {
        let request = serde_json::from_slice::<ControlRequest>(line);
        let needed = request
            .as_ref()
            .map_or(Right::Query, access::required_right);
        if (self.clients.get(&id)).is_none_or(|client| client.right < needed) {
            let why = "permission denied: you have read access only";
            return self.answer(id, &refusal(why.to_owned()), now);
        }
        match request {
            Ok(ControlRequest::Status) => {
                let status = self.status(now);
                self.answer_with(id, status, now);
            }
            Ok(ControlRequest::Grants) => {
                let audit = self.report::<Audit>(CoreRequest::Audit {}, "audit");
                self.answer_with(id, audit, now);
            }
            Ok(ControlRequest::Relay { domain, request }) => match self.state.find(&domain) {
                Some(to) => {
                    let until_ns = now.saturating_add(MAILBOX_TIMEOUT_NS);
                    let token = (self.core).relay(to, request.as_bytes(), Some(until_ns), now);
                    self.wait_for(id, ClientWait::Reply(token));
                }
                None => self.answer(id, &refusal(format!("domain {domain} does not exist")), now),
            },
            Ok(ControlRequest::Down) => {
                self.wait_for(id, ClientWait::End);
                if self.ending.is_none() {
                    self.remove_state_file();
                    let end = CoreRequest::End { failed: false };
                    self.ending = Some(self.core.post(end, &[]));
                }
            }
            Ok(request) => self.serve_change(id, request, now),
            Err(error) => self.answer(id, &refusal(format!("no such request: {error}")), now),
        }
    }

    /// Serves a request that changes the machine. Clients may connect during the machine's start;
    /// their requests then wait until the machine is complete.
    fn serve_change(&mut self, id: u64, request: ControlRequest, now: u64) {
        let begun = match request {
            _ if self.ending.is_some() => Err("the machine is ending".to_owned()),
            // One client within the limit must remain able to send `status` and `down`.
            _ if self.complete_ns.is_none() && self.is_full_for(id) => {
                Err("the machine is starting, and too many requests wait for it".to_owned())
            }
            _ if self.complete_ns.is_none() => {
                self.wait_for(id, ClientWait::Complete(request));
                Ok(())
            }
            ControlRequest::Restart { domain } => {
                let edit = Edit::Restart(domain, "killed: a restart was requested");
                self.carry_out(EditOrigin::Client(id), edit, now)
            }
            ControlRequest::Attach { guest } => self.attach_for(id, guest, now),
            ControlRequest::Detach { domain } => {
                self.carry_out(EditOrigin::Client(id), Edit::Detach(domain), now)
            }
            ControlRequest::Rules { guest } => self.rules_for(id, &guest, now),
            ControlRequest::Reload { files, dry_run } => self.begin_reload(id, files, dry_run, now),
            _ => Err("the request changes nothing".to_owned()),
        };
        if let Err(error) = begun {
            self.answer(id, &refusal(error), now);
        }
    }

    /// Answers waiting requests with the reason why the machine does not start.
    pub(super) fn refuse_waiting(&mut self, why: &str, now: u64) {
        let held = |client: &&mut Client| matches!(client.waits, ClientWait::Complete(_));
        for client in self.clients.values_mut().filter(held) {
            client.answer(&refusal(why.to_owned()), now);
        }
    }

    /// Lets a client wait for an event.
    pub(super) fn wait_for(&mut self, id: u64, event: ClientWait) {
        self.wait_until(id, event, None);
    }

    /// Lets a client wait for an event until a time.
    pub(super) fn wait_until(&mut self, id: u64, event: ClientWait, until_ns: Option<u64>) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.waits = event;
            self.deadlines.set(Deadline::Client(id), until_ns);
        }
    }

    pub(super) fn answer(&mut self, id: u64, answer: &impl Serialize, now: u64) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.answer(answer, now);
            self.deadlines
                .set(Deadline::Client(id), client.deadline_ns());
        }
    }

    /// Answers a request with its result.
    fn answer_with<T: Serialize>(&mut self, id: u64, result: Result<T, CoreError>, now: u64) {
        match result {
            Ok(answer) => self.answer(id, &answer, now),
            Err(error) => self.answer(id, &refusal(error.why), now),
        }
    }

    /// Fails an attach that has waited for too long. The main loop closes the connection of a
    /// client that is too slow.
    pub(super) fn handle_client_deadline(&mut self, id: u64, now: u64) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        match &client.waits {
            ClientWait::Free(_) => {
                let why = "the guest with this name is still being detached after 20 s";
                self.answer(id, &refusal(why.to_owned()), now);
            }
            // The client may have sent or received data since the deadline was set.
            _ => {
                let due_ns = client.deadline_ns().filter(|at| *at > now);
                self.deadlines.set(Deadline::Client(id), due_ns);
            }
        }
    }

    /// Begins to restart a domain immediately.
    pub(super) fn restart_now(
        &mut self,
        origin: EditOrigin,
        (name, reason): (&str, &str),
        now: u64,
    ) -> Result<(), String> {
        let place = self.state.place(name);
        let place = place.ok_or_else(|| format!("domain {name} does not exist"))?;
        if !self.lives.get(&place).is_some_and(Lifecycle::restarts) {
            let why = "does not restart: its configuration has restart = false";
            return Err(format!("domain {name} {why}"));
        }
        if self.is_refitting(place) {
            let why = "netd is opening devices of its new NICs: try again later";
            return Err(format!("domain {name} cannot restart now: {why}"));
        }
        let goal = (RestartGoal::Up, reason);
        self.restart_for(origin, &[place], goal, now);
        Ok(())
    }

    /// Answers clients with the replies to their relayed requests.
    pub(super) fn answer_relayed(&mut self, now: u64) {
        let waiting = self.clients.iter();
        let waiting = waiting.filter_map(|(&id, client)| Some((id, client.token()?)));
        for (id, token) in waiting.collect::<Vec<_>>() {
            if let Some(reply) = self.core.reply(token) {
                let reply = text_of(reply).map(|reply| RelayReply { reply });
                self.answer_with(id, reply, now);
            }
        }
    }

    pub(super) fn core_status(&mut self) -> Result<CoreStatus, CoreError> {
        self.report(CoreRequest::Status {}, "status")
    }

    /// Requests a report from the core. `what` is its name in errors.
    fn report<T: Field>(&mut self, request: CoreRequest, what: &str) -> Result<T, CoreError> {
        let bytes = self.core.request(request, &[])?.bytes(REPORT_MAX)?;
        Ok(decode_report(&bytes).ok_or_else(|| format!("the core's {what} is invalid"))?)
    }

    fn status(&mut self, now: u64) -> Result<Status, CoreError> {
        let core = self.core_status()?;
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own_ns = (own.tv_sec as u64).saturating_mul(1_000_000_000) + own.tv_nsec as u64;
        let domains = core.domains.into_iter().map(|report| {
            let place = self.state.place(&report.name);
            let mut status = DomainStatus {
                report,
                restarts: None,
                removed: place.map_or_else(Vec::new, |place| self.state.lost_interfaces(place)),
                serves_vm: place.is_some_and(|place| self.state.serves_vm(place)),
            };
            let place = place.filter(|place| self.state.id(*place) == Some(DomId(status.id)));
            if let Some(life) = place.and_then(|place| self.lives.get(&place)) {
                life.report(&mut status, now);
            }
            status
        });
        let missing = self.state.spec().missing().iter().cloned();
        let missing = missing.chain(core.missing);
        Ok(Status {
            name: self.state.name.clone(),
            pid: self.core_pid,
            up_ns: self.complete_ns.map_or(0, |at| now.saturating_sub(at)),
            up_took_ns: self.complete_ns.map(|at| at.saturating_sub(self.began_ns)),
            monitor_cpu_ns: core.cpu_ns + core.netd_cpu_ns + own_ns,
            missing: missing.collect(),
            domains: domains.collect(),
            connections: core.connections,
        })
    }
}

/// Returns a domain's reply as text.
fn text_of(reply: Reply) -> Result<String, CoreError> {
    let invalid = |_| "the domain's reply is invalid".to_owned().into();
    String::from_utf8(reply?).map_err(invalid)
}

/// Maximum bytes of an error, which may quote the client's input.
const ERROR_MAX: usize = 60 << 10;

pub(super) fn refusal(mut error: String) -> ControlError {
    error.truncate(error.floor_char_boundary(ERROR_MAX));
    ControlError { error }
}
