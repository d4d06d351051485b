//! Guests that are to be detached once their machine answers: a file for each, of its name, with
//! the path of the machine's control socket. The next call does it.

use crate::failure::{Code, Failure};
use crate::machine::Machine;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// No guest has this name.
const LOCK: &str = ".lock";

/// What is to be done later.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) folder: PathBuf,
}

impl Pending {
    /// Notes that a guest is to be detached.
    pub(crate) fn note(&self, machine: &Machine, guest: &str) -> Result<(), Failure> {
        let write = || {
            let mut folder = DirBuilder::new();
            folder.recursive(true).mode(0o700).create(&self.folder)?;
            fs::write(
                self.folder.join(guest),
                machine.socket.as_os_str().as_bytes(),
            )
        };
        write().map_err(|error| {
            let folder = self.folder.display();
            let msg = format!("that {guest} is to be detached cannot be noted in {folder}");
            Failure::new(Code::Io, msg).because(error)
        })
    }

    /// Whether a guest is to be detached.
    pub(crate) fn has(&self, guest: &str) -> bool {
        self.folder.join(guest).exists()
    }

    /// Detaches what is to be detached from a machine that answers. What does not go stays noted.
    pub(crate) fn make_good(&self, machine: &Machine) {
        if self.of(machine).is_empty() {
            return;
        }
        // One that is being detached by somebody else must not be attached meanwhile.
        let lock = File::create(self.folder.join(LOCK));
        let locked = lock.and_then(|lock| lock.lock().map(|()| lock));
        match locked {
            Ok(lock) => {
                self.make_good_alone(machine);
                drop(lock);
            }
            Err(error) => eprintln!("grantway-cni: {}: {error}", self.folder.display()),
        }
    }

    fn make_good_alone(&self, machine: &Machine) {
        for guest in self.of(machine) {
            let done = machine.detach(&guest).map_err(io::Error::other);
            if let Err(error) = done.and_then(|_| fs::remove_file(self.folder.join(&guest))) {
                eprintln!("grantway-cni: {guest} is still to be detached: {error}");
            }
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
            .filter(|name| name != LOCK && is_its(&self.folder.join(name)))
            .collect()
    }
}
