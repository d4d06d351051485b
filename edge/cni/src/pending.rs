//! Guests that are to be detached once their machine answers: a note for each, a file of its name
//! with the path of the machine's control socket. The next call detaches them.
//!
//! A call holds the lock of a note while it detaches the guest. Other calls leave that guest to it
//! and wait for nothing, so a slow machine delays no container of another one.

use crate::failure::{Code, Failure};
use crate::machine::Machine;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Files that are no notes begin so. No guest's name does.
const HIDDEN: &str = ".";
/// How long one call spends on all guests that are to be detached; the next call goes on.
const BUDGET: Duration = Duration::from_secs(5);

/// What is to be done later.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) folder: PathBuf,
}

impl Pending {
    /// Notes that a guest is to be detached.
    ///
    /// # Errors
    /// The note cannot be written; there is none then.
    pub(crate) fn note(&self, machine: &Machine, guest: &str) -> Result<(), Failure> {
        let new = self
            .folder
            .join(format!("{HIDDEN}{guest}.{}", std::process::id()));
        let write = || {
            let mut folder = DirBuilder::new();
            folder.recursive(true).mode(0o700).create(&self.folder)?;
            // Half a note would keep the guest's name for ever, and its guest attached.
            fs::write(&new, machine.socket.as_os_str().as_bytes())?;
            fs::rename(&new, self.folder.join(guest))
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&new);
            let folder = self.folder.display();
            let msg = format!("that {guest} is to be detached cannot be noted in {folder}");
            Failure::new(Code::Io, msg).because(error)
        })
    }

    /// Whether a guest is to be detached.
    pub(crate) fn has(&self, guest: &str) -> bool {
        self.folder.join(guest).exists()
    }

    /// Detaches what is to be detached from a machine that answers, within [`BUDGET`]. What does
    /// not leave in time stays noted.
    pub(crate) fn make_good(&self, machine: &Machine) {
        let end = Instant::now() + BUDGET;
        for guest in self.of(machine) {
            if let Err(error) = self.make_one_good(machine, &guest, end) {
                eprintln!("grantway-cni: {guest} is still to be detached: {error}");
            }
            if Instant::now() >= end {
                return;
            }
        }
    }

    /// Detaches one guest, unless another call is about to.
    fn make_one_good(&self, machine: &Machine, guest: &str, end: Instant) -> io::Result<()> {
        let path = self.folder.join(guest);
        let note = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            note => note?,
        };
        match note.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(()),
            locked => locked?,
        }
        // Who had the lock before may have detached it, and its name may be in use again.
        if !path.exists() {
            return Ok(());
        }
        machine.detach_by(guest, end).map_err(io::Error::other)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// The names of all that are to be detached from a machine.
    fn of(&self, machine: &Machine) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let is_its = |path: &Path| {
            fs::read(path).is_ok_and(|socket| socket == machine.socket.as_os_str().as_bytes())
        };
        names
            .filter(|name| !name.starts_with(HIDDEN) && is_its(&self.folder.join(name)))
            .collect()
    }
}
