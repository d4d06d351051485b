//! The command line.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What `grantwayd` was told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    /// Where the control socket shall lie.
    pub(crate) socket: PathBuf,
    /// Where the log goes; none: standard error.
    pub(crate) log: Option<String>,
    /// Where the socket for metrics shall lie, if there is to be one.
    pub(crate) metrics: Option<PathBuf>,
    /// The port of the loopback address where metrics are read, too.
    pub(crate) metrics_port: Option<u16>,
    /// Where this program lies, and its helpers with it.
    pub(crate) beside: PathBuf,
    /// Where the domains' programs lie.
    pub(crate) programs: PathBuf,
    /// Whether to end when standard output has no reader any more.
    pub(crate) with_reader: bool,
}

/// The arguments that have a value.
const VALUES: [&str; 5] = [
    "--socket",
    "--log",
    "--metrics",
    "--metrics-port",
    "--programs",
];

const USAGE: &str = "usage: grantwayd --socket PATH [--log FILE] [--metrics PATH] \
                     [--metrics-port PORT] [--programs DIR] [--with-reader] < MACHINE.json";

impl Args {
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut with_reader = false;
        let mut given = BTreeMap::new();
        let mut args = args;
        while let Some(arg) = args.next() {
            if arg == "--with-reader" {
                with_reader = true;
            } else if VALUES.contains(&arg.as_str()) {
                let value = args.next();
                let value = value.ok_or_else(|| format!("{arg} needs a value; {USAGE}"))?;
                given.insert(arg, value);
            } else {
                return Err(format!("{arg}: no such argument; {USAGE}"));
            }
        }
        let socket = given.remove("--socket");
        let port = |text: String| {
            let port = text.parse().ok().filter(|port| *port > 0);
            port.ok_or_else(|| format!("--metrics-port {text}: no port; {USAGE}"))
        };
        let own = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
        let beside = own.parent().map(PathBuf::from).unwrap_or_default();
        Ok(Self {
            socket: socket
                .map(PathBuf::from)
                .ok_or_else(|| format!("--socket is missing; {USAGE}"))?,
            log: given.remove("--log"),
            metrics: given.remove("--metrics").map(PathBuf::from),
            metrics_port: given.remove("--metrics-port").map(port).transpose()?,
            programs: given
                .remove("--programs")
                .map_or_else(|| beside.clone(), PathBuf::from),
            beside,
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
            metrics: None,
            metrics_port: None,
            beside: args.beside.clone(),
            programs: "/p".into(),
            with_reader: false,
        };
        assert_eq!(args, expected);
        assert!(args.beside.is_absolute());
        assert!(
            parse(&["--with-reader", "--socket", "/s"])
                .unwrap()
                .with_reader
        );
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
            assert!(error.contains("no port"), "{error}");
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
