//! Atomic replacement of files.

use anyhow::Context as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

/// Replaces a file atomically. If writing fails, for example because the disk is full or the run is
/// interrupted, the old file remains. A device or a pipe is written directly.
///
/// # Errors
/// Returns an error if the file cannot be written. The error states the path and the cause.
pub fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let wrong = || path.display().to_string();
    let is_special = fs::metadata(path).is_ok_and(|there| !there.is_file());
    if is_special {
        let file = File::options().write(true).open(path);
        return written(file.with_context(wrong)?, write).with_context(wrong);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let file = File::create(&part).with_context(wrong)?;
    let done = written(file, write).and_then(|()| Ok(fs::rename(&part, path)?));
    if done.is_err() {
        // The earlier error is reported, because it is more specific than one from the removal.
        let _left = fs::remove_file(&part);
    }
    done.with_context(wrong)
}

fn written(
    file: File,
    write: impl FnOnce(&mut BufWriter<File>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut file = BufWriter::new(file);
    write(&mut file)?;
    Ok(file.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_keeps_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.svg");
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        replace(&path, |out| Ok(out.write_all(b"old")?)).unwrap();
        let error = replace(&path, |out| {
            out.write_all(b"half of the new one")?;
            anyhow::bail!("no space")
        });
        let error = format!("{:#}", error.unwrap_err());
        assert_eq!(error, format!("{}: no space", path.display()));
        assert_eq!(text(&path), "old");
        replace(&path, |out| Ok(out.write_all(b"new")?)).unwrap();
        assert_eq!(text(&path), "new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_full_disk_is_an_error_with_its_path() {
        let error = replace(Path::new("/dev/full"), |out| Ok(out.write_all(b"x")?));
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.starts_with("/dev/full: No space left"), "{error}");
        assert!(Path::new("/dev/full").exists());
    }
}
