//! The command line.

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
    /// Where the domains' programs lie.
    pub(crate) programs: PathBuf,
    /// Whether to end when standard output has no reader any more.
    pub(crate) with_reader: bool,
}

const USAGE: &str = "usage: grantwayd --socket PATH [--log FILE] [--metrics PATH] \
                     [--metrics-port PORT] [--programs DIR] [--with-reader] < MACHINE.json";

impl Args {
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut socket, mut log, mut programs) = (None, None, None);
        let (mut metrics, mut metrics_port) = (None, None);
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
                "--metrics" => &mut metrics,
                "--metrics-port" => &mut metrics_port,
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
        let port = |text: String| {
            let port = text.parse().ok().filter(|port| *port > 0);
            port.ok_or_else(|| format!("--metrics-port {text}: no port; {USAGE}"))
        };
        Ok(Self {
            socket: socket.into(),
            log,
            metrics: metrics.map(PathBuf::from),
            metrics_port: metrics_port.map(port).transpose()?,
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
            metrics: None,
            metrics_port: None,
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
