//! Records of attached Kubernetes pods: one file for each guest, in a folder. The CNI plugin writes
//! them, and the agent of network policies reads them.

use crate::record_file::{self, INCOMPLETE_PREFIX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Limit of a record, bytes: names of Kubernetes have at most 253.
const RECORD_MAX: u64 = 4096;

/// The pod of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodRecord {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name in that namespace.
    pub pod: String,
    /// The pod's id; empty if the runtime does not pass it.
    #[serde(default)]
    pub uid: String,
}

/// Writes the record of a guest.
///
/// # Errors
///
/// Returns an error if the file cannot be written.
pub fn put(folder: &Path, guest: &str, record: &PodRecord) -> io::Result<()> {
    record_file::put(folder, guest, &serde_json::to_vec(record)?)
}

/// Removes the record of a guest, if it has one.
///
/// # Errors
///
/// Returns an error if the file cannot be removed.
pub fn remove(folder: &Path, guest: &str) -> io::Result<()> {
    match fs::remove_file(folder.join(guest)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Returns all records, by guest. A record never changes, so it is not read again if `known`
/// returns it. Files that are not records are ignored.
///
/// # Errors
///
/// Returns an error if the folder cannot be read.
pub fn all(
    folder: &Path,
    known: impl Fn(&str) -> Option<PodRecord>,
) -> io::Result<BTreeMap<String, PodRecord>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let Ok(guest) = entry?.file_name().into_string() else {
            continue;
        };
        if guest.starts_with(INCOMPLETE_PREFIX) {
            continue;
        }
        if let Some(record) = known(&guest).or_else(|| read(&folder.join(&guest))) {
            all.insert(guest, record);
        }
    }
    Ok(all)
}

fn read(path: &Path) -> Option<PodRecord> {
    let mut text = Vec::new();
    let file = File::open(path).ok()?;
    file.take(RECORD_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("pods");
        assert_eq!(
            all(&folder, |_| None).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        let record = |pod: &str| PodRecord {
            namespace: "n".to_owned(),
            pod: pod.to_owned(),
            uid: String::new(),
        };
        put(&folder, "a", &record("p")).unwrap();
        put(&folder, "b", &record("q")).unwrap();
        fs::write(folder.join("c"), "{").unwrap();
        fs::write(folder.join(".d"), "{}").unwrap();
        let known = |guest: &str| (guest == "a").then(|| record("known"));
        let read = all(&folder, known).unwrap();
        let expected = [("a", "known"), ("b", "q")];
        assert_eq!(
            read,
            expected
                .map(|(guest, pod)| (guest.to_owned(), record(pod)))
                .into()
        );
        for _ in 0..2 {
            remove(&folder, "a").unwrap();
        }
        assert_eq!(all(&folder, |_| None).unwrap().len(), 1);
    }
}
