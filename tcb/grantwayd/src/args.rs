//! The command line.

use std::path::PathBuf;

/// What `grantwayd` was told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    /// Where the control socket shall lie.
    pub(crate) socket: PathBuf,
    /// Where the log goes; none: standard error.
    pub(crate) log: Option<String>,
    /// Where the domains' programs lie.
    pub(crate) programs: PathBuf,
    /// Whether to end when standard output has no reader any more.
    pub(crate) with_reader: bool,
}

const USAGE: &str = "usage: grantwayd --socket PATH [--log FILE] [--programs DIR] [--with-reader] \
                     < MACHINE.json";

impl Args {
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut socket, mut log, mut programs) = (None, None, None);
        let mut with_reader = false;
        let mut args = args;
        while let Some(arg) = args.next() {
            if arg == "--with-reader" {
                with_reader = true;
                continue;
            }
            let place = match arg.as_str() {
                "--socket" => &mut socket,
                "--log" => &mut log,
                "--programs" => &mut programs,
                other => return Err(format!("{other}: no such argument; {USAGE}")),
            };
            *place = Some(
                args.next()
                    .ok_or_else(|| format!("{arg} needs a value; {USAGE}"))?,
            );
        }
        let programs = match programs {
            Some(dir) => PathBuf::from(dir),
            None => {
                let own = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
                own.parent().map(PathBuf::from).unwrap_or_default()
            }
        };
        let socket = socket.ok_or_else(|| format!("--socket is missing; {USAGE}"))?;
        Ok(Self {
            socket: socket.into(),
            log,
            programs,
            with_reader,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, String> {
        Args::parse(args.iter().map(|&arg| arg.to_owned()))
    }

    #[test]
    fn arguments() {
        let args = parse(&["--socket", "/s", "--log", "/l", "--programs", "/p"]).unwrap();
        let expected = Args {
            socket: "/s".into(),
            log: Some("/l".into()),
            programs: "/p".into(),
            with_reader: false,
        };
        assert_eq!(args, expected);
        assert!(
            parse(&["--with-reader", "--socket", "/s"])
                .unwrap()
                .with_reader
        );
        assert_eq!(parse(&["--socket", "/s"]).unwrap().log, None);
        assert!(parse(&[]).unwrap_err().contains("--socket is missing"));
        assert!(parse(&["--socket"]).unwrap_err().contains("needs a value"));
        assert!(
            parse(&["--color"])
                .unwrap_err()
                .contains("no such argument")
        );
    }
}
