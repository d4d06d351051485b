//! The program `grantway-cni`: see the crate `cni`.

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
    let (answer, is_done) = cni::run(&args, vars.collect(), &conf);
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
