//! `grantway-cni`: what a container runtime calls to give a container a network interface, and to
//! take it away again. The container becomes a guest of a machine that runs.
//!
//! CNI 0.4.0, 1.0.0 and 1.1.0: the call is in the environment, the network's configuration on
//! standard input, the answer on standard output. The process keeps nothing: whatever a later call
//! has to know follows from the network's name, the container's id and the interface's name. Called
//! with arguments it is a plugin of netavark's.

mod call;
mod commands;
mod failure;
mod ipam;
mod key;
mod machine;
mod namespace;
mod netavark;
mod network;
mod pending;
mod program;
mod request;
mod result;
#[cfg(test)]
mod tests;
mod version;

use std::ffi::OsString;
use std::io::{Read, Write, stdin, stdout};
use std::process::ExitCode;

/// More than this no runtime says, bytes.
const STDIN_MAX: u64 = 4 << 20;

fn main() -> ExitCode {
    let vars = std::env::vars_os().filter_map(|(key, value)| {
        let (key, value) = (key.into_string().ok()?, value.into_string().ok()?);
        key.starts_with("CNI_").then_some((key, value))
    });
    let args: Vec<String> = std::env::args_os().skip(1).map(shown).collect();
    let mut conf = Vec::new();
    // netavark sends nothing with `info`, and may leave standard input open.
    if args.first().is_none_or(|call| call != "info") {
        // A configuration that cannot be read is an error where it is decoded.
        let _ = stdin().take(STDIN_MAX).read_to_end(&mut conf);
    }
    let (answer, is_done) = match args.as_slice() {
        [] => program::run(vars.collect(), &conf),
        args => netavark::run(args, &vars.collect(), &conf),
    };
    let written = stdout().write_all(answer.as_bytes());
    match is_done && written.is_ok() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// What is no text is no argument that anybody knows.
fn shown(arg: OsString) -> String {
    arg.to_string_lossy().into_owned()
}
