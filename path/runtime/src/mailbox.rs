//! Answers requests that the monitor forwards: `stat`, `set`, `trace`.

mod client;
mod settings;

pub use client::MailboxClient;
pub use settings::RuntimeSettings;

use abi::layout::mailbox;
use abi::mailbox::{MailboxError, MailboxRequest};
use serde_json::Value;
use shmem::Span;
use std::sync::atomic::Ordering;

/// The domain's end of the mailbox.
#[derive(Clone, Debug)]
pub struct DomainMailbox {
    memory: Span,
}

impl DomainMailbox {
    /// Opens the mailbox in `memory`.
    #[must_use]
    pub fn new(memory: Span) -> Self {
        Self { memory }
    }

    /// Takes the pending request, if any, and writes the reply that `answer` returns.
    pub fn serve(&self, answer: impl FnOnce(MailboxRequest) -> Result<Value, String>) {
        let Some(number) = self.word(mailbox::REQUEST) else {
            return;
        };
        if Some(number) == self.word(mailbox::REPLY) {
            return;
        }
        let reply = self
            .request()
            .and_then(answer)
            .unwrap_or_else(|error| serde_json::json!(MailboxError { error }))
            .to_string();
        let mut bytes = reply.as_bytes();
        let too_long = r#"{"error":"the answer is longer than the mailbox"}"#;
        if bytes.len() > mailbox::OUT_MAX {
            bytes = too_long.as_bytes();
        }
        let out = self.memory.skip(mailbox::OUT).take(bytes.len());
        if out.write(bytes).is_ok()
            && let Some(length) = self.memory.u32(mailbox::REPLY_BYTES)
            && let Some(reply) = self.memory.u32(mailbox::REPLY)
        {
            length.store(bytes.len() as u32, Ordering::Relaxed);
            // Release ensures that a worker that reads the number also reads the reply.
            reply.store(number, Ordering::Release);
        }
    }

    fn request(&self) -> Result<MailboxRequest, String> {
        let bytes = self.word(mailbox::REQUEST_BYTES).unwrap_or(0) as usize;
        let mut text = vec![0; bytes.min(mailbox::IN_MAX)];
        let span = self.memory.skip(mailbox::IN).take(text.len());
        span.read(&mut text)
            .map_err(|_| "the request is unreadable".to_owned())?;
        serde_json::from_slice(&text).map_err(|error| format!("not a request: {error}"))
    }

    fn word(&self, offset: usize) -> Option<u32> {
        // Acquire ensures that the request is visible together with its number.
        self.memory
            .u32(offset)
            .map(|word| word.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use shmem::Area;

    fn ask(memory: Span, number: u32, text: &str) {
        memory.skip(mailbox::IN).write(text.as_bytes()).unwrap();
        let word = |offset| memory.u32(offset).unwrap();
        word(mailbox::REQUEST_BYTES).store(text.len() as u32, Ordering::Relaxed);
        word(mailbox::REQUEST).store(number, Ordering::Release);
    }

    fn reply(memory: Span) -> (u32, Value) {
        let word = |offset| memory.u32(offset).unwrap().load(Ordering::Acquire);
        let mut bytes = vec![0; word(mailbox::REPLY_BYTES) as usize];
        memory.skip(mailbox::OUT).read(&mut bytes).unwrap();
        let value = serde_json::from_slice(&bytes).unwrap();
        (word(mailbox::REPLY), value)
    }

    fn memory() -> Span {
        Area::anonymous(mailbox::BYTES).unwrap().span()
    }

    #[test]
    fn a_request_is_answered_once() {
        let memory = memory();
        let mailbox = DomainMailbox::new(memory);
        mailbox.serve(|_| panic!("no request is pending"));
        ask(memory, 7, r#"{"op":"stat"}"#);
        mailbox.serve(|request| {
            assert_eq!(request, MailboxRequest::Stat);
            Ok(json!({ "packets": 3 }))
        });
        assert_eq!(reply(memory), (7, json!({ "packets": 3 })));
        mailbox.serve(|_| panic!("the request was already answered"));
    }

    #[test]
    fn unanswerable_requests_return_the_reason() {
        let memory = memory();
        let mailbox = DomainMailbox::new(memory);
        ask(memory, 1, "stat, please");
        mailbox.serve(|_| panic!("an invalid request was passed on"));
        let (number, value) = reply(memory);
        assert_eq!(number, 1);
        assert!(value["error"].as_str().unwrap().contains("not a request"));
        ask(memory, 2, r#"{"op":"trace"}"#);
        mailbox.serve(|_| Ok(Value::from("x".repeat(mailbox::OUT_MAX))));
        let (number, value) = reply(memory);
        assert_eq!(number, 2);
        assert!(value["error"].as_str().unwrap().contains("longer"));
    }
}
