//! A plugin that is called as this one is, above all the one that gives out addresses.

use crate::call::{Call, is_id};
use crate::failure::{Code, Failure};
use crate::result::CniResult;
use crate::version::Version;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// An answer has at most so many bytes.
const ANSWER_MAX: u64 = 1 << 20;
/// One that has not answered by then does not.
const LIMIT: Duration = Duration::from_secs(60);

/// The program, and what it is called with: the same variables and configuration.
#[derive(Debug)]
pub(crate) struct Delegate<'a> {
    program: PathBuf,
    call: &'a Call,
    conf: &'a Value,
    version: Version,
}

/// What a plugin says to VERSION.
#[derive(Deserialize)]
struct Speaks {
    #[serde(rename = "supportedVersions")]
    versions: Vec<String>,
}

impl<'a> Delegate<'a> {
    /// Finds the program of this name in the folders of CNI_PATH.
    pub(crate) fn of(
        name: &str,
        call: &'a Call,
        conf: &'a Value,
        version: Version,
    ) -> Result<Self, Failure> {
        if !is_id(name) {
            let msg = format!("`type` of `ipam` is \"{}\"", name.escape_debug());
            return Err(Failure::new(Code::Config, msg).because("write the name of a program"));
        }
        let path = call.env.get("CNI_PATH").map_or("", String::as_str);
        let mut places = std::env::split_paths(path).map(|folder| folder.join(name));
        let program = places.find(|place| place.is_file()).ok_or_else(|| {
            let msg = format!("there is no plugin {name} in CNI_PATH ({path})");
            Failure::new(Code::Io, msg)
        })?;
        Ok(Self {
            program,
            call,
            conf,
            version,
        })
    }

    /// Addresses for the container, in a result.
    pub(crate) fn add(&self) -> Result<CniResult, Failure> {
        let answer = self.run("ADD")?;
        serde_json::from_slice(&answer).map_err(|error| {
            let msg = format!("what {} answers cannot be read", self.program.display());
            Failure::new(Code::Decode, msg).because(error)
        })
    }

    /// The container's addresses are free again; also if there are none.
    pub(crate) fn del(&self) -> Result<(), Failure> {
        self.run("DEL").map(drop)
    }

    /// Whether the addresses are still the container's.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.run("CHECK").map(drop)
    }

    /// STATUS or GC, which plugins before 1.1.0 do not know.
    pub(crate) fn newer(&self, command: &str) -> Result<(), Failure> {
        match self.version >= Version::V1_1 && self.speaks()?.contains(&Version::V1_1) {
            true => self.run_in(command, Version::V1_1).map(drop),
            false => Ok(()),
        }
    }

    /// In the version of this call, or in the newest older one that the program speaks.
    fn run(&self, command: &str) -> Result<Vec<u8>, Failure> {
        match self.run_in(command, self.version) {
            Err(failure) if failure.is(Code::Version) => {
                let speaks = self.speaks()?.into_iter();
                match speaks.filter(|version| *version < self.version).max() {
                    Some(version) => self.run_in(command, version),
                    None => Err(failure),
                }
            }
            done => done,
        }
    }

    fn speaks(&self) -> Result<Vec<Version>, Failure> {
        let conf = json!({ "cniVersion": self.version.text() });
        let answer = self.execute("VERSION", &conf)?;
        let speaks: Speaks = serde_json::from_slice(&answer).map_err(|error| {
            let msg = format!("{} does not say its versions", self.program.display());
            Failure::new(Code::Decode, msg).because(error)
        })?;
        let versions = speaks.versions.iter().map(String::as_str);
        Ok(versions.filter_map(Version::of).collect())
    }

    fn run_in(&self, command: &str, version: Version) -> Result<Vec<u8>, Failure> {
        let mut conf = self.conf.clone();
        if let Some(text) = conf.get_mut("cniVersion") {
            *text = version.text().into();
        }
        self.execute(command, &conf)
    }

    /// What the program answers.
    fn execute(&self, command: &str, conf: &Value) -> Result<Vec<u8>, Failure> {
        let shown = self.program.display();
        let mut program = Command::new(&self.program);
        program.envs(&self.call.env).env("CNI_COMMAND", command);
        let (answer, status) = finish(&mut program, conf.to_string()).map_err(|error| {
            let msg = format!("{shown} cannot be used to {command}");
            Failure::new(Code::Io, msg).because(error)
        })?;
        if status.success() {
            return Ok(answer);
        }
        Err(match serde_json::from_slice::<Failure>(&answer) {
            Ok(failure) => Failure {
                msg: format!("{}: {}", name(&self.program), failure.msg),
                ..failure
            },
            Err(_) => {
                let said = String::from_utf8_lossy(&answer).trim().to_owned();
                Failure::new(Code::Io, format!("{shown} failed: {status}")).because(said)
            }
        })
    }
}

fn name(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Runs a program to its end, but not for ever: what it wrote, and how it ended.
fn finish(program: &mut Command, input: String) -> io::Result<(Vec<u8>, ExitStatus)> {
    let end = Instant::now() + LIMIT;
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (told, answer) = channel();
    // One that reads nothing until it has written, or never, holds up a thread only.
    thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = stdout.map(|stdout| stdout.take(ANSWER_MAX).read_to_end(&mut text));
        told.send(read.transpose().map(|_| text))
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

/// How a program ended; none: it has not by then.
fn ended_by(child: &mut Child, end: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || Instant::now() >= end {
            return Ok(ended);
        }
        thread::sleep(Duration::from_millis(1));
    }
}
