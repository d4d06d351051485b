//! Tests of a configuration in several files.

use super::*;

fn files(texts: &[&str]) -> Vec<ConfigFile> {
    let file = |(n, text): (usize, &&str)| ConfigFile {
        name: format!("{n}.toml"),
        text: (*text).to_owned(),
    };
    texts.iter().enumerate().map(file).collect()
}

const FIRST: &str = r#"[driver]
cpus = [0, 1]
spin_us = 5
[[nic]]
name = "wire"
kind = "sim"
addresses = ["10.0.0.1/24"]
[[guest]]
name = "a"
[[guest.vif]]
endpoint = "echo"
"#;
const GUEST: &str = "[[guest]]\nname = \"b\"\n[[guest.vif]]\nendpoint = \"sink\"\n";

#[test]
fn sections_merge_by_key_and_lists_append() {
    let texts = [
        FIRST,
        "[driver]\ncpus = [2]\nworkers = 1\n",
        GUEST,
        "[driver]\nspin_us = 9\n",
    ];
    let (config, _) = parse_with_source(&files(&texts)).unwrap();
    let driver = &config.driver;
    assert_eq!((&driver.cpus[..], driver.spin_us), (&[2][..], Some(9)));
    let names: Vec<&str> = config.guests.iter().map(|guest| &guest.name[..]).collect();
    assert_eq!((names, config.nics.len()), (vec!["a", "b"], 1));
}

#[test]
fn mistakes_name_their_file() {
    let message = |texts: &[&str]| parse_with_source(&files(texts)).unwrap_err().to_string();
    let wrong = "# why\n\n[driver]\nspin_u = 3\n";
    assert_eq!(
        message(&[FIRST, GUEST, wrong]),
        "2.toml:4: [driver]: unknown key `spin_u`; did you mean `spin_us`?"
    );
    // Mistakes in one file, and mistakes that only both files together have.
    assert_eq!(
        message(&[FIRST, GUEST, "\n[[guest]]\nname = \"a\"\n"]),
        "2.toml:2: [[guest]] 3: it has 0 interfaces; give it 1 to 16 sections [[guest.vif]]\n\
         2.toml:3: [[guest]] 3: the name \"a\" is also that of [[guest]] 1; choose another one"
    );
    let text = message(&[FIRST, "[ring\n", "[driver]\nspin_us = x\n"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("1.toml:1:6: "), "{text}");
    assert!(lines[1].starts_with("2.toml:2:11: "), "{text}");
}

/// A value belongs to the last file that sets it. The end of a file also ends its last line.
#[test]
fn a_mistake_is_in_the_file_of_the_last_value() {
    let texts = [FIRST, "[driver]\ncpus = [99]", "[driver]\nspin_us = 1"];
    let problems = parse_with_source(&files(&texts)).unwrap_err().to_string();
    assert!(
        problems.starts_with("1.toml:2: [driver]: `cpus` has 99"),
        "{problems}"
    );
    assert_eq!(problems.lines().count(), 1, "{problems}");
    let (_, source) = parse_with_source(&files(&[FIRST, GUEST])).unwrap();
    let found = Finding {
        part: ConfigPart::Guest(1),
        key: "name",
        what: "w".into(),
        remedy: "r".into(),
    };
    let found = source.check(vec![found]).unwrap_err().to_string();
    assert_eq!(found, "1.toml:2: [[guest]] 2: w; r");
}

#[test]
fn a_value_of_another_type_is_rejected_in_place() {
    let texts = [FIRST, "guest = 1\n"];
    let problems = parse_with_source(&files(&texts)).unwrap_err().to_string();
    assert!(problems.starts_with("1.toml:1: "), "{problems}");
    assert!(
        problems.contains("`guest` is 1; write a section [[guest]] for each"),
        "{problems}"
    );
}
