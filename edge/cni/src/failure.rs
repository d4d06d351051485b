//! Why a call was not done, as a runtime is told.

use crate::version::Version;
use serde::Deserialize;
use serde_json::json;

/// The numbers of CNI; its plugins' own begin at 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Code {
    /// A version of CNI that is not spoken.
    Version = 1,
    /// Something that is asked for and not supported: the message has key and value.
    Unsupported = 2,
    /// There is no such container: the runtime need not clean up.
    NoContainer = 3,
    /// A variable of the environment is missing or wrong.
    Environment = 4,
    /// A file or a program could not be used.
    Io = 5,
    /// Something is no JSON, or not the kind of value that it has to be.
    Decode = 6,
    /// The network's configuration makes no sense.
    Config = 7,
    /// The machine does not answer now: try again later.
    Later = 11,
    /// STATUS: nothing can be added now.
    NotReady = 50,
    /// The machine refuses.
    Refused = 100,
    /// CHECK: something is not as it was left.
    Differs = 101,
    /// It was added already.
    Exists = 102,
}

/// Why a call was not done.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Failure {
    /// A [`Code`], or one of another plugin's.
    pub(crate) code: u32,
    /// What is wrong, in one sentence.
    pub(crate) msg: String,
    /// More of it, if there is any.
    #[serde(default)]
    pub(crate) details: String,
}

impl Failure {
    pub(crate) fn new(code: Code, msg: impl Into<String>) -> Self {
        Self {
            code: code as u32,
            msg: msg.into(),
            details: String::new(),
        }
    }

    /// The same with the reason.
    pub(crate) fn because(self, details: impl ToString) -> Self {
        Self {
            details: details.to_string(),
            ..self
        }
    }

    pub(crate) fn is(&self, code: Code) -> bool {
        self.code == code as u32
    }

    /// The object that a runtime reads.
    pub(crate) fn written(&self, version: Version) -> String {
        let object = json!({
            "cniVersion": version.text(),
            "code": self.code,
            "msg": self.msg,
            "details": self.details,
        });
        format!("{object}\n")
    }
}
