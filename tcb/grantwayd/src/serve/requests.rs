//! Requests of clients: what each is answered, and by whom.

use super::Server;
use crate::client::Waits;
use abi::DomId;
use abi::machine::{Control, ControlError, Relayed, Status};
use monitor::RelayError;
use rustix::time::{ClockId, clock_gettime};

/// How long a relayed request waits for its turn.
const ROOM_NS: u64 = 1_500_000_000;

impl Server {
    /// Sees to every request that has arrived.
    pub(super) fn requests(&mut self, now: u64) {
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            while let Some(line) = self.clients.get_mut(&id).and_then(|c| c.next_line()) {
                self.request(id, &line, now);
            }
        }
    }

    fn request(&mut self, id: u64, line: &[u8], now: u64) {
        let control = serde_json::from_slice::<Control>(line);
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        match control {
            Ok(Control::Status) => {
                let status = self.status(now);
                self.answer(id, &status, now);
            }
            Ok(Control::Grants) => client.answer(&self.hypervisor.audit(), now),
            Ok(Control::Relay { domain, request }) => match self.hypervisor.find(&domain) {
                Some(to) => {
                    let until = now.saturating_add(ROOM_NS);
                    client.waits = Waits::Room(to, request.into_bytes(), until);
                }
                None => client.answer(&refusal(format!("there is no domain {domain}")), now),
            },
            Ok(Control::Down) => {
                client.waits = Waits::End;
                self.ending = true;
            }
            Err(error) => client.answer(&refusal(format!("no such request: {error}")), now),
        }
    }

    fn answer(&mut self, id: u64, answer: &impl serde::Serialize, now: u64) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.answer(answer, now);
        }
    }

    /// Moves relayed requests and replies on.
    pub(super) fn relay(&mut self, now: u64) {
        let domains: Vec<DomId> = self.relays.keys().copied().collect();
        for domain in domains {
            let Some(outcome) = self.hypervisor.relayed(domain, now) else {
                continue;
            };
            let reply = outcome
                .and_then(|bytes| String::from_utf8(bytes).map_err(|_| RelayError::Nonsense));
            if let Some(id) = self.relays.remove(&domain) {
                match reply {
                    Ok(reply) => self.answer(id, &Relayed { reply }, now),
                    Err(error) => self.answer(id, &refusal(error.to_string()), now),
                }
            }
        }
        for (id, client) in &mut self.clients {
            let Waits::Room(to, request, until) = &client.waits else {
                continue;
            };
            let to = *to;
            match self.hypervisor.relay(to, request, now) {
                Ok(()) => {
                    self.relays.insert(to, *id);
                    client.waits = Waits::Reply;
                }
                Err(RelayError::Busy) if now < *until => {}
                Err(error) => client.answer(&refusal(error.to_string()), now),
            }
        }
    }

    fn status(&mut self, now: u64) -> Status {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let mut domains = self.hypervisor.domain_status();
        for status in &mut domains {
            self.restarts.iter().for_each(|r| r.tell(status, now));
        }
        Status {
            name: self.name.clone(),
            pid: std::process::id(),
            up_ns: self.complete_ns.map_or(0, |at| now.saturating_sub(at)),
            up_took_ns: self.complete_ns.map(|at| at.saturating_sub(self.began_ns)),
            monitor_cpu_ns: (cpu.tv_sec as u64).saturating_mul(1_000_000_000) + cpu.tv_nsec as u64,
            missing: self.hypervisor.missing(),
            domains,
            connections: self.hypervisor.connection_status(),
        }
    }
}

fn refusal(error: String) -> ControlError {
    ControlError { error }
}
