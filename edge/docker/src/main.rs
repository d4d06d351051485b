//! The program `grantway-docker`: see the crate `docker`.

use docker::{Folders, RemoteDriver, reconcile, serve};
use std::ffi::OsString;
use std::io::{self, stdin};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::{fs, thread};

const USAGE: &str = "\
usage: grantway-docker [--socket PATH] [--state FOLDER] [--run FOLDER]

Docker's remote network driver `grantway`. Docker finds it by its socket,
/run/docker/plugins/grantway.sock.

  --socket PATH   socket to listen on [default: standard input, which is then a
                  listening socket (systemd: StandardInput=socket)]
  --state FOLDER  folder for networks, which survive a reboot
                  [default: /var/lib/grantway/docker]
  --run FOLDER    folder for endpoints of containers
                  [default: /run/grantway/docker]
  --version       print the version
  --help          print this text

Example: grantway-docker --socket /run/docker/plugins/grantway.sock
";

/// The arguments.
struct Args {
    socket: Option<PathBuf>,
    folders: Folders,
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|arg| arg.to_str()) {
        Some("--help" | "-h") => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some("--version") => {
            println!("grantway-docker {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let Some(args) = parsed(args) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("grantway-docker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parsed(args: Vec<OsString>) -> Option<Args> {
    let mut parsed = Args {
        socket: None,
        folders: Folders {
            state: "/var/lib/grantway/docker".into(),
            run: "/run/grantway/docker".into(),
        },
    };
    let mut args = args.into_iter();
    while let Some(key) = args.next() {
        let value = PathBuf::from(args.next()?);
        match key.to_str()? {
            "--socket" => parsed.socket = Some(value),
            "--state" => parsed.folders.state = value,
            "--run" => parsed.folders.run = value,
            _ => return None,
        }
    }
    Some(parsed)
}

fn run(args: Args) -> io::Result<()> {
    let listener = match &args.socket {
        Some(path) => bound(path),
        None => stdin().as_fd().try_clone_to_owned().map(Into::into),
    };
    let listener: UnixListener = listener.map_err(|error| {
        let place = args
            .socket
            .as_deref()
            .unwrap_or(Path::new("standard input"));
        io::Error::other(format!("cannot listen at {}: {error}", place.display()))
    })?;
    listener.local_addr().map_err(|error| {
        io::Error::other(format!(
            "standard input is not a listening socket ({error}): pass `--socket PATH`, or start \
             grantway-docker.socket"
        ))
    })?;
    let driver = Arc::new(RemoteDriver::open(&args.folders)?);
    let kept = Arc::clone(&driver);
    thread::spawn(move || reconcile(&kept));
    serve(&listener, &driver)
}

/// Listens at a path. A socket on which no process listens any longer is replaced.
fn bound(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let is_left = |error: &io::Error| {
        error.kind() == io::ErrorKind::AddrInUse && UnixStream::connect(path).is_err()
    };
    let listener = match UnixListener::bind(path) {
        Err(error) if is_left(&error) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
