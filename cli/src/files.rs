//! Reads the files of a configuration: the named file, and the fragments in the folder next to it.

use config::ConfigFile;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use tool::Failure;

/// Reads `CONFIG` and, if the folder `CONFIG.d` exists, its files `*.toml` in the order of their
/// names.
pub(crate) fn read(config: &Path) -> Result<Vec<ConfigFile>, Failure> {
    let text = std::fs::read_to_string(config).map_err(|e| {
        let file = config.display();
        Failure::Usage(format!(
            "{file} cannot be read ({e}); see examples/ for one to start from"
        ))
    })?;
    let mut files = vec![file(config, text)];
    let mut folder = OsString::from(config);
    folder.push(".d");
    let folder = PathBuf::from(folder);
    let unreadable = |path: &Path, error: io::Error| {
        Failure::Usage(format!("{} cannot be read ({error})", path.display()))
    };
    for fragment in fragments(&folder).map_err(|e| unreadable(&folder, e))? {
        let text = std::fs::read_to_string(&fragment).map_err(|e| unreadable(&fragment, e))?;
        files.push(file(&fragment, text));
    }
    Ok(files)
}

fn file(path: &Path, text: String) -> ConfigFile {
    let name = path.display().to_string();
    ConfigFile { name, text }
}

/// Returns the fragments in a folder, or an empty list if the folder does not exist. Excludes
/// backup files of editors and package managers, which have other endings or are hidden.
fn fragments(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let is_hidden = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b".");
        if path.extension().is_some_and(|end| end == "toml")
            && !path.file_name().is_some_and(is_hidden)
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn fragments_are_read_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("grantway.conf");
        fs::write(&config, "first").unwrap();
        let names = |files: Vec<ConfigFile>| -> Vec<String> {
            let of = |file: ConfigFile| {
                let name = file.name.rsplit('/').next().unwrap_or_default();
                format!("{name}={}", file.text)
            };
            files.into_iter().map(of).collect()
        };
        assert_eq!(names(read(&config).unwrap()), ["grantway.conf=first"]);
        let folder = dir.path().join("grantway.conf.d");
        fs::create_dir(&folder).unwrap();
        for name in ["20-b.toml", "10-a.toml", "30.toml~", ".40.toml", "README"] {
            fs::write(folder.join(name), "x").unwrap();
        }
        assert_eq!(
            names(read(&config).unwrap()),
            ["grantway.conf=first", "10-a.toml=x", "20-b.toml=x"]
        );
        fs::write(folder.join("50-latin.toml"), b"\xff").unwrap();
        let error = read(&config).unwrap_err().to_string();
        assert!(
            error.contains("grantway.conf.d/50-latin.toml cannot be read"),
            "{error}"
        );
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "a file").unwrap();
        let error = read(&config).unwrap_err().to_string();
        assert!(error.contains("grantway.conf.d cannot be read"), "{error}");
    }
}
