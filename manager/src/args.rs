//! The core's arguments that name files and sockets for the manager.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The files and sockets to open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    /// Path of the control socket.
    pub(crate) socket: PathBuf,
    /// Path of the log; unset: standard error.
    pub(crate) log: Option<String>,
    /// Path of the socket for metrics, if any.
    pub(crate) metrics: Option<PathBuf>,
    /// Port of the loopback address for metrics, if any.
    pub(crate) metrics_port: Option<u16>,
}

/// Arguments that take a value.
const VALUES: [&str; 4] = ["--socket", "--log", "--metrics", "--metrics-port"];

const USAGE: &str = "usage: grantwayd --socket PATH [--log FILE] [--metrics PATH] \
    [--metrics-port PORT] [--state FILE] [--programs FOLDER] [--with-reader] < MACHINE.json";

impl Args {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut given = BTreeMap::new();
        while let Some(arg) = args.next() {
            if !VALUES.contains(&arg.as_str()) {
                return Err(format!("{arg}: no such argument; {USAGE}"));
            }
            let value = args.next();
            let value = value.ok_or_else(|| format!("{arg} needs a value; {USAGE}"))?;
            given.insert(arg, value);
        }
        let socket = given.remove("--socket");
        let port = |text: String| {
            let port = text.parse().ok().filter(|port| *port > 0);
            port.ok_or_else(|| format!("--metrics-port {text}: not a port number; {USAGE}"))
        };
        Ok(Self {
            socket: socket
                .map(PathBuf::from)
                .ok_or_else(|| format!("--socket is missing; {USAGE}"))?,
            log: given.remove("--log"),
            metrics: given.remove("--metrics").map(PathBuf::from),
            metrics_port: given.remove("--metrics-port").map(port).transpose()?,
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
    fn arguments_are_parsed() {
        let args = parse(&["--socket", "/s", "--log", "/l"]).unwrap();
        let expected = Args {
            socket: "/s".into(),
            log: Some("/l".into()),
            metrics: None,
            metrics_port: None,
        };
        assert_eq!(args, expected);
        assert_eq!(parse(&["--socket", "/s"]).unwrap().log, None);
        let metrics = [
            "--socket",
            "/s",
            "--metrics",
            "/m",
            "--metrics-port",
            "9464",
        ];
        let args = parse(&metrics).unwrap();
        assert_eq!(
            (args.metrics, args.metrics_port),
            (Some("/m".into()), Some(9464))
        );
        for port in ["0", "65536", "http"] {
            let error = parse(&["--socket", "/s", "--metrics-port", port]).unwrap_err();
            assert!(error.contains("not a port number"), "{error}");
        }
        assert!(parse(&[]).unwrap_err().contains("--socket is missing"));
        assert!(parse(&["--socket"]).unwrap_err().contains("needs a value"));
        assert!(
            parse(&["--color"])
                .unwrap_err()
                .contains("no such argument")
        );
    }
}
