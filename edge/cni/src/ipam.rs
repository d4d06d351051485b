//! Calls of other plugins, above all of the one that assigns addresses.

use crate::call::{CniCall, is_id};
use crate::error::{CniError, ErrorCode};
use crate::result::CniResult;
use crate::version::CniVersion;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum length of an answer in bytes.
const ANSWER_MAX: u64 = 1 << 20;
/// Deadline of a call.
const LIMIT: Duration = Duration::from_secs(60);

/// Another plugin's program. Its variables and its configuration are those of this call.
#[derive(Debug)]
pub(crate) struct Delegate<'a> {
    program: PathBuf,
    call: &'a CniCall,
    conf: &'a Value,
    version: CniVersion,
}

/// A plugin's answer to VERSION.
#[derive(Deserialize)]
struct VersionAnswer {
    #[serde(rename = "supportedVersions")]
    versions: Vec<String>,
}

impl<'a> Delegate<'a> {
    /// Finds the program of this name in the folders of CNI_PATH.
    pub(crate) fn of(
        name: &str,
        call: &'a CniCall,
        conf: &'a Value,
        version: CniVersion,
    ) -> Result<Self, CniError> {
        if !is_id(name) {
            let msg = format!("`type` of `ipam` is \"{}\"", name.escape_debug());
            return Err(CniError::new(ErrorCode::Config, msg)
                .with_details("set it to the name of a program"));
        }
        let path = call.env.get("CNI_PATH").map_or("", String::as_str);
        let mut places = std::env::split_paths(path).map(|folder| folder.join(name));
        let program = places.find(|place| place.is_file()).ok_or_else(|| {
            let msg = format!("CNI_PATH ({path}) has no plugin {name}");
            CniError::new(ErrorCode::Io, msg)
        })?;
        Ok(Self {
            program,
            call,
            conf,
            version,
        })
    }

    /// Requests addresses for the container, and returns them as a result.
    pub(crate) fn add(&self) -> Result<CniResult, CniError> {
        let answer = self.run("ADD")?;
        serde_json::from_slice(&answer).map_err(|error| {
            let msg = format!("cannot parse the answer of {}", self.program.display());
            CniError::new(ErrorCode::Decode, msg).with_details(error)
        })
    }

    /// Releases the container's addresses; succeeds if it has none.
    pub(crate) fn del(&self) -> Result<(), CniError> {
        self.run("DEL").map(drop)
    }

    /// Checks that the container still has its addresses.
    pub(crate) fn check(&self) -> Result<(), CniError> {
        self.run("CHECK").map(drop)
    }

    /// Calls STATUS or GC, unless the plugin is older than 1.1.0.
    pub(crate) fn call_if_supported(&self, command: &str) -> Result<(), CniError> {
        match self.version >= CniVersion::V1_1
            && self.supported_versions()?.contains(&CniVersion::V1_1)
        {
            true => self.run_in(command, CniVersion::V1_1).map(drop),
            false => Ok(()),
        }
    }

    /// Calls the program with the version of this call, or with the newest older version that it
    /// supports.
    fn run(&self, command: &str) -> Result<Vec<u8>, CniError> {
        match self.run_in(command, self.version) {
            Err(failure) if failure.is(ErrorCode::CniVersion) => {
                let supported = self.supported_versions()?.into_iter();
                match supported.filter(|version| *version < self.version).max() {
                    Some(version) => self.run_in(command, version),
                    None => Err(failure),
                }
            }
            done => done,
        }
    }

    fn supported_versions(&self) -> Result<Vec<CniVersion>, CniError> {
        let conf = json!({ "cniVersion": self.version.text() });
        let answer = self.execute("VERSION", &conf)?;
        let supported: VersionAnswer = serde_json::from_slice(&answer).map_err(|error| {
            let msg = format!("{} does not report its versions", self.program.display());
            CniError::new(ErrorCode::Decode, msg).with_details(error)
        })?;
        let versions = supported.versions.iter().map(String::as_str);
        Ok(versions.filter_map(CniVersion::of).collect())
    }

    fn run_in(&self, command: &str, version: CniVersion) -> Result<Vec<u8>, CniError> {
        let mut conf = self.conf.clone();
        if let Some(text) = conf.get_mut("cniVersion") {
            *text = version.text().into();
        }
        self.execute(command, &conf)
    }

    /// Returns the program's answer.
    fn execute(&self, command: &str, conf: &Value) -> Result<Vec<u8>, CniError> {
        let shown = self.program.display();
        let mut program = Command::new(&self.program);
        program.envs(&self.call.env).env("CNI_COMMAND", command);
        let (answer, status) = finish(&mut program, conf.to_string()).map_err(|error| {
            let msg = format!("cannot run {shown} to {command}");
            CniError::new(ErrorCode::Io, msg).with_details(error)
        })?;
        if status.success() {
            return Ok(answer);
        }
        Err(match serde_json::from_slice::<CniError>(&answer) {
            Ok(failure) => CniError {
                msg: format!("{}: {}", name(&self.program), failure.msg),
                ..failure
            },
            Err(_) => {
                let said = String::from_utf8_lossy(&answer).trim().to_owned();
                CniError::new(ErrorCode::Io, format!("{shown} failed: {status}")).with_details(said)
            }
        })
    }
}

fn name(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Runs a program until it exits or the deadline passes; returns its output and its status.
fn finish(program: &mut Command, input: String) -> io::Result<(Vec<u8>, ExitStatus)> {
    let end = Instant::now() + LIMIT;
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (sender, answer) = channel();
    // A program that does not read its input blocks only this thread.
    thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = stdout.map(|stdout| stdout.take(ANSWER_MAX).read_to_end(&mut text));
        sender.send(read.transpose().map(|_| text))
    });
    let answer = answer.recv_timeout(LIMIT);
    let status = ended_by(&mut child, end);
    match (answer, status?) {
        (Ok(answer), Some(status)) => Ok((answer?, status)),
        _ => {
            child.kill()?;
            child.wait()?;
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}

/// Waits until `end` for a program to exit; returns `None` if the program is still running then.
fn ended_by(child: &mut Child, end: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || Instant::now() >= end {
            return Ok(ended);
        }
        thread::sleep(Duration::from_millis(1));
    }
}
