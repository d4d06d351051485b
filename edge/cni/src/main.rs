//! The program `grantway-cni`: see the crate `cni`.

use std::ffi::OsString;
use std::io::{Read, Write, stdin, stdout};
use std::process::ExitCode;

/// Maximum length of standard input in bytes.
const STDIN_MAX: u64 = 4 << 20;

fn main() -> ExitCode {
    let vars = std::env::vars_os().filter_map(|(key, value)| {
        let (key, value) = (key.into_string().ok()?, value.into_string().ok()?);
        key.starts_with("CNI_").then_some((key, value))
    });
    let args: Vec<String> = std::env::args_os().skip(1).map(shown).collect();
    let mut conf = Vec::new();
    // With `info`, netavark sends nothing and may leave standard input open.
    if args.first().is_none_or(|call| call != "info") {
        // Decoding reports an unreadable configuration.
        let _ = stdin().take(STDIN_MAX).read_to_end(&mut conf);
    }
    let (answer, is_done) = cni::run(&args, vars.collect(), &conf);
    let written = stdout().write_all(answer.as_bytes());
    match is_done && written.is_ok() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Converts an argument to text. The text of an argument that is not UTF-8 matches no known
/// argument.
fn shown(arg: OsString) -> String {
    arg.to_string_lossy().into_owned()
}
