//! Pending cleanups: guests that are to be detached once their machine answers. Each has a file
//! with the guest's name, which contains the path of the machine's control socket. The next call
//! detaches them.
//!
//! A call holds the lock of a guest's file while it detaches the guest. Other calls skip that
//! guest, so a slow machine does not delay the containers of other machines.

use crate::error::{CniError, ErrorCode};
use crate::machine::MachineClient;
use client::record_file::{self, INCOMPLETE_PREFIX};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest time that one call spends on all pending guests; the next call continues.
const BUDGET: Duration = Duration::from_secs(5);

/// The pending cleanups.
#[derive(Clone, Debug)]
pub(crate) struct PendingCleanups {
    pub(crate) folder: PathBuf,
}

impl PendingCleanups {
    /// Records that a guest is to be detached.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written and does not exist.
    pub(crate) fn record(&self, machine: &MachineClient, guest: &str) -> Result<(), CniError> {
        // The file is written atomically, because a truncated file would block the guest's name
        // forever and leave the guest attached.
        let socket = machine.socket.as_os_str().as_bytes();
        record_file::put(&self.folder, guest, socket).map_err(|error| {
            let folder = self.folder.display();
            let msg = format!("cannot record in {folder} that {guest} must be detached");
            CniError::new(ErrorCode::Io, msg).with_details(error)
        })
    }

    /// Returns whether a guest is to be detached.
    pub(crate) fn has(&self, guest: &str) -> bool {
        self.folder.join(guest).exists()
    }

    /// Detaches pending guests of a machine that answers, within [`BUDGET`]. Guests that are not
    /// detached in time stay recorded.
    pub(crate) fn retry_all(&self, machine: &MachineClient) {
        let end = Instant::now() + BUDGET;
        for guest in self.of(machine) {
            if let Err(error) = self.retry_one(machine, &guest, end) {
                eprintln!("grantway-cni: {guest} has not been detached yet: {error}");
            }
            if Instant::now() >= end {
                return;
            }
        }
    }

    /// Detaches one guest, unless another call is already doing so.
    fn retry_one(&self, machine: &MachineClient, guest: &str, end: Instant) -> io::Result<()> {
        let path = self.folder.join(guest);
        let note = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            note => note?,
        };
        match note.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(()),
            locked => locked?,
        }
        // The previous holder of the lock may have detached the guest, and its name may be in use
        // again.
        if !path.exists() {
            return Ok(());
        }
        machine.detach_by(guest, end).map_err(io::Error::other)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Returns the names of all guests to be detached from a machine.
    fn of(&self, machine: &MachineClient) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let is_its = |path: &Path| {
            fs::read(path).is_ok_and(|socket| socket == machine.socket.as_os_str().as_bytes())
        };
        names
            .filter(|name| !name.starts_with(INCOMPLETE_PREFIX) && is_its(&self.folder.join(name)))
            .collect()
    }
}
