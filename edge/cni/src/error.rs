//! Errors of calls, in the form that a runtime expects.

use crate::version::CniVersion;
use serde::Deserialize;
use serde_json::json;
use std::fmt;

/// Error codes of CNI. Codes of plugins begin at 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ErrorCode {
    /// Unsupported version of CNI.
    CniVersion = 1,
    /// Unsupported request. The message has the key and the value.
    Unsupported = 2,
    /// The container does not exist, so the runtime need not clean up.
    NoContainer = 3,
    /// An environment variable is missing or invalid.
    Environment = 4,
    /// A file or a program is unusable.
    Io = 5,
    /// Invalid JSON, or a value of another type.
    Decode = 6,
    /// The network's configuration is invalid.
    Config = 7,
    /// The machine does not answer now. The runtime should try again later.
    Later = 11,
    /// STATUS: an ADD would fail now.
    NotReady = 50,
    /// The machine rejects the request.
    Refused = 100,
    /// CHECK: the attachment has changed.
    Differs = 101,
    /// The attachment already exists.
    Exists = 102,
}

/// Error of a call. Displays as the error with its details.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CniError {
    /// An [`ErrorCode`], or the code of another plugin.
    pub(crate) code: u32,
    /// The error, in one sentence.
    pub(crate) msg: String,
    /// Details, if any.
    #[serde(default)]
    pub(crate) details: String,
}

impl CniError {
    pub(crate) fn new(code: ErrorCode, msg: impl Into<String>) -> Self {
        Self {
            code: code as u32,
            msg: msg.into(),
            details: String::new(),
        }
    }

    /// Adds the reason as details.
    pub(crate) fn with_details(self, details: impl ToString) -> Self {
        Self {
            details: details.to_string(),
            ..self
        }
    }

    pub(crate) fn is(&self, code: ErrorCode) -> bool {
        self.code == code as u32
    }

    /// Returns the JSON object for the runtime.
    pub(crate) fn to_json(&self, version: CniVersion) -> String {
        let object = json!({
            "cniVersion": version.text(),
            "code": self.code,
            "msg": self.msg,
            "details": self.details,
        });
        format!("{object}\n")
    }
}

impl fmt::Display for CniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.details.as_str() {
            "" => f.write_str(&self.msg),
            details => write!(f, "{}: {details}", self.msg),
        }
    }
}

impl std::error::Error for CniError {}
