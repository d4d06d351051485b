//! Answers to what the monitor passes on: `stat`, `set`, `trace`.

mod asker;
mod switches;

pub use asker::Asker;
pub use switches::Switches;

use abi::layout::info;
use abi::mailbox::{Refusal, Request};
use serde_json::Value;
use shmem::Span;
use std::sync::atomic::Ordering;

/// The domain's end of the mailbox.
#[derive(Clone, Debug)]
pub struct Mailbox {
    info: Span,
}

impl Mailbox {
    /// The mailbox in `info`.
    #[must_use]
    pub fn new(info: Span) -> Self {
        Self { info }
    }

    /// Takes the request that waits, if any, and writes what `answer` says to it.
    pub fn serve(&self, answer: impl FnOnce(Request) -> Result<Value, String>) {
        let Some(number) = self.word(info::MAILBOX_REQUEST) else {
            return;
        };
        if Some(number) == self.word(info::MAILBOX_REPLY) {
            return;
        }
        let reply = self
            .request()
            .and_then(answer)
            .unwrap_or_else(|error| serde_json::json!(Refusal { error }))
            .to_string();
        let mut bytes = reply.as_bytes();
        let too_long = r#"{"error":"the answer is longer than the mailbox"}"#;
        if bytes.len() > info::MAILBOX_OUT_MAX {
            bytes = too_long.as_bytes();
        }
        let out = self.info.skip(info::MAILBOX_OUT).take(bytes.len());
        if out.write(bytes).is_ok()
            && let Some(length) = self.info.u32(info::MAILBOX_REPLY_BYTES)
            && let Some(reply) = self.info.u32(info::MAILBOX_REPLY)
        {
            length.store(bytes.len() as u32, Ordering::Relaxed);
            // Release: a worker that sees the number sees the reply.
            reply.store(number, Ordering::Release);
        }
    }

    fn request(&self) -> Result<Request, String> {
        let bytes = self.word(info::MAILBOX_REQUEST_BYTES).unwrap_or(0) as usize;
        let mut text = vec![0; bytes.min(info::MAILBOX_IN_MAX)];
        let span = self.info.skip(info::MAILBOX_IN).take(text.len());
        span.read(&mut text)
            .map_err(|_| "the request cannot be read".to_owned())?;
        serde_json::from_slice(&text).map_err(|error| format!("not a request: {error}"))
    }

    fn word(&self, offset: usize) -> Option<u32> {
        // Acquire: the request is seen with its number.
        self.info
            .u32(offset)
            .map(|word| word.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use shmem::Area;

    fn ask(info: Span, number: u32, text: &str) {
        info.skip(info::MAILBOX_IN).write(text.as_bytes()).unwrap();
        let word = |offset| info.u32(offset).unwrap();
        word(info::MAILBOX_REQUEST_BYTES).store(text.len() as u32, Ordering::Relaxed);
        word(info::MAILBOX_REQUEST).store(number, Ordering::Release);
    }

    fn reply(info: Span) -> (u32, Value) {
        let word = |offset| info.u32(offset).unwrap().load(Ordering::Acquire);
        let mut bytes = vec![0; word(info::MAILBOX_REPLY_BYTES) as usize];
        info.skip(info::MAILBOX_OUT).read(&mut bytes).unwrap();
        let value = serde_json::from_slice(&bytes).unwrap();
        (word(info::MAILBOX_REPLY), value)
    }

    fn info() -> Span {
        Area::anonymous(info::bytes(0, 0)).unwrap().span()
    }

    #[test]
    fn a_request_is_answered_once() {
        let info = info();
        let mailbox = Mailbox::new(info);
        mailbox.serve(|_| panic!("nobody asked"));
        ask(info, 7, r#"{"op":"stat"}"#);
        mailbox.serve(|request| {
            assert_eq!(request, Request::Stat);
            Ok(json!({ "packets": 3 }))
        });
        assert_eq!(reply(info), (7, json!({ "packets": 3 })));
        mailbox.serve(|_| panic!("it was answered"));
    }

    #[test]
    fn what_cannot_be_answered_says_why() {
        let info = info();
        let mailbox = Mailbox::new(info);
        ask(info, 1, "stat, please");
        mailbox.serve(|_| panic!("that is no request"));
        let (number, value) = reply(info);
        assert_eq!(number, 1);
        assert!(value["error"].as_str().unwrap().contains("not a request"));
        ask(info, 2, r#"{"op":"trace"}"#);
        mailbox.serve(|_| Ok(Value::from("x".repeat(info::MAILBOX_OUT_MAX))));
        let (number, value) = reply(info);
        assert_eq!(number, 2);
        assert!(value["error"].as_str().unwrap().contains("longer"));
    }
}
