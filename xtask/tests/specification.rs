//! SPECIFICATION.md names a test for each promise: it has to be there, in the crate that is named.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The sources of each crate of the workspace, in one text and with the names of their files.
fn sources() -> BTreeMap<String, String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.split("members = [").nth(1).unwrap();
    let members = members.split(']').next().unwrap();
    let quoted = members.split('"').skip(1).step_by(2);
    let read = |member: &str| {
        let folder = root().join(member);
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let name = manifest.split("name = \"").nth(1).unwrap();
        let name = name.split('"').next().unwrap().to_owned();
        let mut text = String::new();
        for part in ["src", "tests"] {
            append(&folder.join(part), &mut text);
        }
        (name, text)
    };
    quoted.map(read).collect()
}

fn append(path: &Path, text: &mut String) {
    if let Ok(entries) = fs::read_dir(path) {
        let mut entries: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| append(entry, text));
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        text.push_str(&format!("mod {stem};\n"));
        text.push_str(&fs::read_to_string(path).unwrap());
    }
}

/// A test or a module of tests.
fn holds(source: &str, name: &str) -> bool {
    source.contains(&format!("fn {name}()")) || source.contains(&format!("mod {name};"))
}

#[test]
fn every_test_that_is_named_exists() {
    let sources = sources();
    let text = fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
    let mut checked = 0;
    for name in text.split('`').skip(1).step_by(2) {
        if let Some((package, test)) = name.split_once(": ") {
            let source = sources
                .get(package)
                .unwrap_or_else(|| panic!("`{name}`: there is no crate {package}"));
            assert!(holds(source, test), "`{name}` is not in {package}");
            checked += 1;
        } else if name.matches('_').count() > 1
            && !name.contains(|c: char| c.is_whitespace() || c == '/' || c == ':' || c == '.')
        {
            let somewhere = sources.values().any(|source| holds(source, name));
            assert!(somewhere, "there is no test `{name}`");
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} tests are named");
}
