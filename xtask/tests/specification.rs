//! Checks that the tests exist that SPECIFICATION.md names for each guarantee, and those that the
//! requirements in `specs/` name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the sources of each crate of the workspace as one text, which includes the names of the
/// files.
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

/// Returns whether a source has a test or a module of tests with this name.
fn has_test(source: &str, name: &str) -> bool {
    source.contains(&format!("fn {name}(")) || source.contains(&format!("mod {name};"))
}

#[test]
fn every_named_test_exists() {
    let sources = sources();
    let text = fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
    let mut checked = 0;
    for name in text.split('`').skip(1).step_by(2) {
        if let Some((package, test)) = name.split_once(": ") {
            let source = sources
                .get(package)
                .unwrap_or_else(|| panic!("`{name}`: crate {package} does not exist"));
            assert!(has_test(source, test), "`{name}` is not in {package}");
            checked += 1;
        } else if name.matches('_').count() > 1
            && !name.contains(|c: char| c.is_whitespace() || c == '/' || c == ':' || c == '.')
        {
            let somewhere = sources.values().any(|source| has_test(source, name));
            assert!(somewhere, "test `{name}` does not exist");
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} tests are named");
}

/// Returns the code within italics, by which `specs/` names tests.
fn in_italics(text: &str) -> Vec<&str> {
    let mut is_italic = false;
    let mut found = Vec::new();
    for (number, part) in text.split('`').enumerate() {
        if number % 2 == 0 {
            is_italic ^= part.matches('*').count() % 2 == 1;
        } else if is_italic {
            found.push(part);
        }
    }
    found
}

/// Returns whether a test exists. The name may be that of a file of tests, a function or a group of
/// functions (`attack_06_*`), with or without modules. Returns `None` if it cannot be a test's
/// name.
fn test_exists(sources: &BTreeMap<String, String>, name: &str) -> Option<bool> {
    let last = name.rsplit("::").next()?;
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let somewhere = |is_it: &dyn Fn(&str) -> bool| sources.values().any(|source| is_it(source));
    if let Some(file) = name.strip_suffix(".rs") {
        let module = format!("mod {};", file.rsplit('/').next()?);
        return Some(somewhere(&|source| source.contains(&module)));
    }
    let start = last.strip_suffix('*').unwrap_or(last);
    let is_test = name.contains('_') || name.contains("::");
    if !is_test || !start.bytes().all(is_word) {
        return None;
    }
    let group = format!("fn {start}");
    Some(match start == last {
        true => somewhere(&|source| has_test(source, last)),
        false => somewhere(&|source| source.contains(&group)),
    })
}

#[test]
fn tests_named_by_requirements_exist() {
    let sources = sources();
    let (mut checked, mut missing) = (0, Vec::new());
    for page in fs::read_dir(root().join("specs")).unwrap() {
        let page = page.unwrap().path();
        let text = fs::read_to_string(&page).unwrap();
        for name in in_italics(&text) {
            let found = test_exists(&sources, name);
            checked += usize::from(found.is_some());
            if found == Some(false) {
                missing.push(format!("{}: `{name}`", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "missing tests: {missing:#?}");
    assert!(checked > 200, "only {checked} tests are named");
}

/// Returns the cells of each row in the table of attacks.
fn attacks(specification: &str) -> Vec<Vec<&str>> {
    let section = specification.split("\n## Attacks\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect());
    cells.skip(1).collect()
}

/// Returns the name of a file's package, from the nearest manifest above the file.
fn package_of(file: &Path) -> String {
    let manifest = file.ancestors().map(|folder| folder.join("Cargo.toml"));
    let manifest = manifest
        .map(fs::read_to_string)
        .find_map(Result::ok)
        .unwrap();
    let name = manifest.split("name = \"").nth(1).unwrap();
    name.split('"').next().unwrap().to_owned()
}

/// Checks that every attack has tests, that each test is in the named file, and that the row's
/// command runs it. The command must name the file's package and a part of the test's name.
#[test]
fn the_command_of_each_row_tests_its_attack() {
    let text = fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
    let rows = attacks(&text);
    let numbers: Vec<String> = (1..=36).map(|number| number.to_string()).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), numbers);
    for row in rows {
        let (number, command) = (row[0], row[4].trim_matches('`'));
        let words: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(words[..2], ["cargo", "test"], "{number}: {command}");
        let mut tests = 0;
        for group in row[3].split(';') {
            let (file, names) = group.split_once(": ").unwrap();
            let is_model = file.contains("(loom)");
            let file = root().join(file.split('`').nth(1).unwrap());
            let source = fs::read_to_string(&file)
                .unwrap_or_else(|error| panic!("{number}: {}: {error}", file.display()));
            let package = package_of(&file);
            assert!(
                words.windows(2).any(|two| two == ["-p", &package]),
                "{number}: the command omits {package}"
            );
            for name in names.split('`').skip(1).step_by(2) {
                tests += 1;
                let test_exists = source.contains(&format!("fn {name}("));
                assert!(test_exists, "{number}: {name} is not in {}", file.display());
                let runs = words[2..].iter().any(|word| name.contains(word));
                assert!(runs || is_model, "{number}: the command omits {name}");
            }
        }
        assert!(tests > 0, "{number}: no test");
    }
}
