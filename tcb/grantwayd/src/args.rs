//! The command line.

use std::path::PathBuf;

/// The arguments of `grantwayd`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    /// The state file, which outlives this process, if any.
    pub(crate) state: Option<PathBuf>,
    /// The folder of this program and its helpers.
    pub(crate) helpers: PathBuf,
    /// The folder of the domains' programs.
    pub(crate) programs: PathBuf,
    /// The name of the driver domain's program.
    pub(crate) driver: &'static str,
    /// Whether to shut down the machine once standard output has no reader.
    pub(crate) with_reader: bool,
    /// Arguments for the manager.
    pub(crate) manager_args: Vec<String>,
}

impl Args {
    pub(crate) fn parse(
        driver: &'static str,
        mut args: impl Iterator<Item = String>,
    ) -> Result<Self, String> {
        let (mut with_reader, mut programs, mut manager_args) = (false, None, Vec::new());
        let mut state = None;
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--with-reader" => with_reader = true,
                "--programs" => programs = Some(args.next().ok_or("--programs needs a value")?),
                "--state" => state = Some(args.next().ok_or("--state needs a value")?),
                _ => manager_args.push(arg),
            }
        }
        let own = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
        let helpers = own.parent().map(PathBuf::from).unwrap_or_default();
        Ok(Self {
            programs: programs.map_or_else(|| helpers.clone(), PathBuf::from),
            driver,
            state: state.map(PathBuf::from),
            helpers,
            with_reader,
            manager_args,
        })
    }

    /// Returns the paths of the manager's sockets.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &str> {
        let pairs = self.manager_args.chunks_exact(2);
        pairs.filter_map(|pair| match pair {
            [name, path] if ["--socket", "--metrics"].contains(&name.as_str()) => Some(&**path),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, String> {
        Args::parse("driver", args.iter().map(|&arg| arg.to_owned()))
    }

    #[test]
    fn arguments_are_parsed() {
        let given = "--socket /s --programs /p --state /x --log /l";
        let given: Vec<&str> = given.split(' ').collect();
        let args = parse(&given).unwrap();
        let expected = Args {
            state: Some("/x".into()),
            helpers: args.helpers.clone(),
            programs: "/p".into(),
            driver: "driver",
            with_reader: false,
            manager_args: ["--socket", "/s", "--log", "/l"].map(str::to_owned).into(),
        };
        assert_eq!(args, expected);
        assert!(args.helpers.is_absolute());
        let metrics = ["--with-reader", "--log", "--socket", "--metrics", "/m"];
        let args = parse(&metrics).unwrap();
        assert!(args.with_reader);
        assert!(
            args.sockets().eq(["/m"]),
            "a log file may have the name of an option"
        );
        let error = parse(&["--programs"]).unwrap_err();
        assert!(error.contains("needs a value"), "{error}");
    }
}
