//! Records on disk: a folder with a JSON file for each, named by its id. A file is replaced as a
//! whole, or not at all.

use crate::api::Id;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Prefix of files that are being written. No id begins with it.
const HIDDEN: &str = ".";
/// Limit of a file, bytes.
const FILE_MAX: u64 = 1 << 20;

/// A folder of records.
#[derive(Debug)]
pub(crate) struct RecordStore(PathBuf);

impl RecordStore {
    /// Opens the folder; creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be created.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        let named = |error| io::Error::other(format!("{}: {error}", folder.display()));
        made.map_err(named)?;
        Ok(Self(folder.to_owned()))
    }

    /// Writes a record.
    ///
    /// # Errors
    ///
    /// Returns an error if the record cannot be written. An earlier record with this id is then
    /// unchanged.
    pub(crate) fn put<T: Serialize>(&self, id: &Id, record: &T) -> io::Result<()> {
        let new = self.0.join(format!("{HIDDEN}{id}"));
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec(record)?)?;
            // After a power failure, the file has the old contents or the new ones.
            file.sync_all()?;
            fs::rename(&new, self.0.join(id.as_str()))?;
            File::open(&self.0)?.sync_all()
        };
        write().map_err(|error| {
            let _absent = fs::remove_file(&new);
            io::Error::other(format!("cannot write to {}: {error}", self.0.display()))
        })
    }

    /// Removes a record, if it exists.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be removed.
    pub(crate) fn remove(&self, id: &Id) -> io::Result<()> {
        match fs::remove_file(self.0.join(id.as_str())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Returns all records. A file that is not a record is reported and kept.
    pub(crate) fn all<T: DeserializeOwned>(&self) -> Vec<(Id, T)> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let ids = names.filter_map(|name| Id::try_from(name).ok());
        let record = |id: Id| match self.read(&id) {
            Ok(record) => Some((id, record)),
            Err(error) => {
                let file = self.0.join(id.as_str());
                eprintln!("grantway-docker: {} is ignored: {error}", file.display());
                None
            }
        };
        ids.filter_map(record).collect()
    }

    fn read<T: DeserializeOwned>(&self, id: &Id) -> io::Result<T> {
        let mut text = Vec::new();
        let file = File::open(self.0.join(id.as_str()))?;
        file.take(FILE_MAX).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: &str) -> Id {
        Id::try_from(digit.repeat(64)).unwrap()
    }

    #[test]
    fn records_survive_and_junk_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        let store = RecordStore::open(&folder).unwrap();
        for text in ["first", "second"] {
            store.put(&id("a"), &text).unwrap();
        }
        fs::write(folder.join(id("b").as_str()), "{\"half").unwrap();
        fs::write(folder.join("README"), "\"other\"").unwrap();
        fs::write(folder.join(format!(".{}", id("c"))), "\"unfinished\"").unwrap();
        let store = RecordStore::open(&folder).unwrap();
        assert_eq!(store.all::<String>(), [(id("a"), "second".to_owned())]);
        for _ in 0..2 {
            store.remove(&id("a")).unwrap();
        }
        assert_eq!(store.all::<String>(), []);
    }

    #[test]
    fn a_failed_write_keeps_the_old_record() {
        let dir = tempfile::tempdir().unwrap();
        let store = RecordStore::open(dir.path()).unwrap();
        store.put(&id("a"), &"old").unwrap();
        fs::create_dir(dir.path().join(format!(".{}", id("a")))).unwrap();
        let error = store.put(&id("a"), &"new").unwrap_err().to_string();
        let folder = dir.path().display().to_string();
        assert!(error.contains(&folder), "{error}");
        assert_eq!(store.all::<String>(), [(id("a"), "old".to_owned())]);
    }
}
