//! A request to a worker of the driver domain about a guest's port. The manager repeats the request
//! until the worker has carried it out, because the worker may be dead and about to restart.
//! Workers carry out a repeated request once.

use crate::core::CoreError;
use crate::spec::Ports;
use abi::layout::mailbox;
use abi::mailbox::MailboxRequest;

/// Interval of attempts.
const RETRY_NS: u64 = 5_000_000;

/// One request to one worker.
#[derive(Debug)]
pub(crate) struct WorkerCall {
    /// The worker's place in the machine.
    pub(crate) worker: usize,
    /// The number by which the worker knows the connection.
    pub(crate) conn: u32,
    pub(crate) request: Vec<u8>,
    pub(crate) state: CallState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallState {
    /// The request is due at this time.
    Due(u64),
    /// The request was sent; its reply will have this token.
    Sent(u32),
    Done,
}

impl WorkerCall {
    /// Returns a call that is due immediately.
    ///
    /// # Errors
    /// Returns an error if the request does not fit into a mailbox.
    pub(crate) fn new(worker: usize, conn: u32, request: &MailboxRequest) -> Result<Self, String> {
        let request = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        if request.len() > mailbox::IN_MAX {
            return Err(format!(
                "the description of an interface has {} bytes, more than {}: give it fewer rules",
                request.len(),
                mailbox::IN_MAX
            ));
        }
        Ok(Self {
            worker,
            conn,
            request,
            state: CallState::Due(0),
        })
    }

    /// Returns a call for each port. `request` makes the request from the port's description.
    ///
    /// # Errors
    /// Returns the errors of [`WorkerCall::new`].
    pub(crate) fn of_ports(
        ports: &Ports,
        request: impl Fn(String) -> MailboxRequest,
    ) -> Result<Vec<Self>, String> {
        let mut calls = Vec::new();
        for (&worker, vifs) in ports {
            for vif in vifs {
                let text = serde_json::to_string(vif).map_err(|error| error.to_string())?;
                calls.push(Self::new(worker, vif.conn, &request(text))?);
            }
        }
        Ok(calls)
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, CallState::Done)
    }

    /// Returns the token of the pending request.
    pub(crate) fn token(&self) -> Option<u32> {
        match self.state {
            CallState::Sent(token) => Some(token),
            CallState::Due(_) | CallState::Done => None,
        }
    }

    /// Records a reply, or its absence. With `must`, the request is repeated even if the worker
    /// refuses it.
    ///
    /// # Errors
    /// Returns an error if the worker refuses the request.
    pub(crate) fn replied(
        &mut self,
        reply: Result<Vec<u8>, CoreError>,
        must: bool,
        now_ns: u64,
    ) -> Result<(), String> {
        let is_repeated = |refusal: &Option<String>| must && refusal.is_some();
        match reply.map(|reply| refused(&reply)) {
            Ok(refusal) if !is_repeated(&refusal) => {
                self.state = CallState::Done;
                refusal.map_or(Ok(()), Err)
            }
            Ok(_) | Err(_) => {
                self.state = CallState::Due(now_ns.saturating_add(RETRY_NS));
                Ok(())
            }
        }
    }
}

/// Returns why the worker refuses a request, or `None` if it accepts.
fn refused(reply: &[u8]) -> Option<String> {
    let refusal = serde_json::from_slice::<abi::mailbox::MailboxError>(reply);
    refusal.ok().map(|refusal| refusal.error)
}
