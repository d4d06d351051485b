//! Every key is in the example and in the key tables of the documentation, with its default.
//!
//! In tests, the reader records every key that it knows, so that its types decide what the example
//! and the tables must have.

use super::uncommented;
use crate::parse::{parse, read, single_file};
use std::collections::BTreeSet;

const DOCS: &str = include_str!("../../../docs/config.md");

/// A section of a file, between two parts that make it valid.
struct Context {
    /// The section's name in the documentation.
    section: &'static str,
    /// The file up to the section's last key.
    head: String,
    /// The file after it.
    tail: &'static str,
}

impl Context {
    /// Returns the file with a line in the section.
    fn with(&self, line: &str) -> String {
        format!("{}{line}\n{}", self.head, self.tail)
    }
}

/// Returns a valid file for each section, kind and endpoint.
fn contexts() -> Vec<Context> {
    let nic = |keys: &str| format!("[[nic]]\nname = \"n\"\n{keys}\n");
    let vif = |keys: &str| format!("[[guest]]\nname = \"g\"\n[[guest.vif]]\n{keys}\n");
    let station = "addresses = [\"10.0.0.1/24\"]";
    let mut all = Vec::new();
    let mut add = |section, head| {
        let tail = "";
        all.push(Context {
            section,
            head,
            tail,
        });
    };
    for section in ["machine", "driver", "buffers", "ring", "lro"] {
        add(section, format!("[{section}]\n"));
    }
    for keys in [
        "kind = \"tap\"",
        "kind = \"local\"",
        "kind = \"xdp\"",
        "kind = \"xdp\"\nnetdev = \"e\"",
        "kind = \"vfio\"\ndevice = \"0000:00:03.0\"",
        "kind = \"pcap\"\nread = \"f\"",
        "kind = \"soft\"\nwire = \"tap\"",
        "kind = \"soft\"\nwire = \"source\"\nto = \"02:00:00:00:00:01\"",
    ] {
        add("nic", nic(keys));
    }
    for keys in ["", "moderation = \"tick\"", "queues = \"vmq\""] {
        add("nic", nic(&format!("kind = \"sim\"\n{station}\n{keys}")));
    }
    add("nic", nic(&format!("kind = \"soft\"\n{station}")));
    let uplink = format!("kind = \"tap\"\n{station}\n[nic.uplink]\nnat = true");
    add("nic.uplink", nic(&uplink));
    for keys in [
        "endpoint = \"tap\"\nnetns = \"g\"",
        "endpoint = \"sink\"",
        "endpoint = \"source\"\nto = \"02:00:00:00:00:01\"",
        "endpoint = \"echo\"",
        "endpoint = \"echo\"\nfirewall = \"stateful\"",
        "endpoint = \"pcap\"\nread = \"f\"",
        "endpoint = \"vhost-user\"\nsocket = \"/run/s\"",
    ] {
        add("guest.vif", vif(keys));
    }
    add(
        "guest.vif",
        vif(&format!("endpoint = \"stack\"\n{station}")),
    );
    let rule = "rule]]\naction = \"deny\"";
    add("nic.rule", nic(&format!("kind = \"local\"\n[[nic.{rule}")));
    let vif_rule = format!("endpoint = \"echo\"\n[[guest.vif.{rule}");
    add("guest.vif.rule", vif(&vif_rule));
    for keys in [
        "kind = \"tcp-sink\"\nport = 1",
        "kind = \"tcp-echo\"\nport = 1",
        "kind = \"tcp-source\"\nto = \"10.0.0.2:1\"",
        "kind = \"tcp-client\"\nto = \"10.0.0.2:1\"",
        "kind = \"ping\"\nto = \"10.0.0.2\"",
    ] {
        let app = format!("kind = \"sim\"\n{station}\n[[nic.app]]\n{keys}");
        add("nic.app", nic(&app));
        let app = format!("endpoint = \"stack\"\n{station}\n[[guest.vif.app]]\n{keys}");
        add("guest.vif.app", vif(&app));
    }
    all.push(Context {
        section: "guest",
        head: "[[guest]]\nname = \"g\"\n".to_owned(),
        tail: "[[guest.vif]]\nendpoint = \"echo\"\n",
    });
    all
}

/// Returns every section and key that the reader knows.
fn known() -> BTreeSet<(&'static str, &'static str)> {
    let read_one = |context: Context| {
        let text = context.with("");
        parse("context", &text).unwrap_or_else(|wrong| panic!("{text}\n{wrong}"));
        read(&single_file("context", &text)).1.known
    };
    let keys = contexts().into_iter().flat_map(read_one);
    keys.map(|((section, key), _)| (section, key)).collect()
}

/// A key of a table of the documentation.
#[derive(Debug)]
struct Documented {
    /// The sections that the chapter's heading names.
    sections: Vec<String>,
    key: String,
    /// The default, if it is a value as in a file.
    default: Option<String>,
}

impl Documented {
    /// Returns whether it documents keys of a section: the key of a table of the chapter of the
    /// section, or of the section above it.
    fn is_of(&self, section: &str) -> bool {
        let above = section.rsplit_once('.').map(|(above, _)| above);
        let is_named = |name: &str| self.sections.iter().any(|of| of == name);
        let has_chapter = is_chapter(section);
        is_named(section) || !has_chapter && above.is_some_and(is_named)
    }
}

/// Returns whether a heading of the documentation names a section.
fn is_chapter(section: &str) -> bool {
    let names = |line: &str| headed(line).iter().any(|name| name == section);
    DOCS.lines().any(names)
}

/// Returns the sections that a line names if it is the heading of a chapter.
fn headed(line: &str) -> Vec<String> {
    let heading = line.strip_prefix("## ").unwrap_or_default();
    let spans = heading.split('`').skip(1).step_by(2);
    spans.filter_map(section_name).collect()
}

/// Returns the name in `[name]` or `[[name]]`.
fn section_name(span: &str) -> Option<String> {
    let name = span.strip_prefix('[')?.strip_suffix(']')?;
    Some(name.trim_matches(['[', ']']).to_owned())
}

/// Returns the keys of a cell, each with the text in parentheses after it.
fn keys_of(cell: &str) -> Vec<(String, String)> {
    let mut keys: Vec<(String, String)> = Vec::new();
    let mut depth = 0;
    for (n, text) in cell.split('`').enumerate() {
        let is_code = n % 2 == 1;
        match keys.last_mut() {
            Some((_, note)) if depth > 0 => note.push_str(text),
            _ if is_code => keys.push((text.to_owned(), String::new())),
            _ => {}
        }
        if !is_code {
            depth += text.matches('(').count();
            depth -= text.matches(')').count();
            if let (Some((_, note)), Some((_, rest))) = (keys.last_mut(), text.split_once('(')) {
                rest.clone_into(note);
            }
        }
    }
    keys
}

/// Returns a text that is a value of a file.
fn literal(text: &str) -> Option<String> {
    let text = text.trim_matches(['`', ')', ' ']);
    let is_value = toml::from_str::<toml::Table>(&format!("x = {text}")).is_ok();
    is_value.then(|| text.to_owned())
}

/// Returns every key of the key tables.
fn documented() -> Vec<Documented> {
    let mut all = Vec::new();
    let mut sections = Vec::new();
    // The columns of the keys and of their defaults, in a key table.
    let mut columns = None;
    for line in DOCS.lines() {
        if line.starts_with("## ") {
            sections = headed(line);
        }
        let cells: Vec<&str> = line
            .split(" | ")
            .map(|cell| cell.trim_matches(['|', ' ']))
            .collect();
        columns = match cells[..] {
            _ if !line.starts_with('|') => None,
            ["key", "default", ..] => Some((0, true)),
            ["key", ..] => Some((0, false)),
            [kind, "keys", ..] => {
                all.extend(keys_of(kind).into_iter().map(|(key, _)| Documented {
                    sections: sections.clone(),
                    key,
                    default: None,
                }));
                Some((1, false))
            }
            _ => columns,
        };
        let Some((column, has_default)) = columns else {
            continue;
        };
        for (key, note) in keys_of(cells.get(column).unwrap_or(&"")) {
            let default = match has_default {
                true => literal(cells.get(1).unwrap_or(&"")),
                false => literal(&note),
            };
            let path = section_name(&key);
            let (of, key) = match path.as_deref().and_then(|path| path.rsplit_once('.')) {
                Some((section, key)) => (vec![section.to_owned()], key.to_owned()),
                None => (sections.clone(), key),
            };
            // The row names its section if the chapter has several.
            let of = match section_name(note.trim_matches([' ', ')'])) {
                Some(section) => vec![section],
                None => of,
            };
            all.push(Documented {
                sections: of,
                key,
                default,
            });
        }
    }
    all
}

#[test]
fn every_key_is_in_the_example() {
    let text = uncommented().replacen("\"event\"", "\"tick\"", 1);
    let (_, reading) = read(&single_file("example", &text));
    let written = reading
        .known
        .into_iter()
        .filter(|(_, is_written)| *is_written);
    let written: BTreeSet<_> = written.map(|(key, _)| key).collect();
    // The programs of both kinds of station have the same keys.
    let program = |section: &str| ["nic.app", "guest.vif.app"].contains(&section);
    let is_written = |(section, key): &(&'static str, &'static str)| {
        let mut same = written.iter().filter(|(_, other)| other == key);
        same.any(|(other, _)| other == section || program(other) && program(section))
    };
    let missing: Vec<_> = known().into_iter().filter(|key| !is_written(key)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_key_is_in_a_table_of_the_docs() {
    let (known, documented) = (known(), documented());
    let is_documented = |(section, key): &(&'static str, &'static str)| match *section {
        "" => is_chapter(key),
        section => documented
            .iter()
            .any(|one| one.is_of(section) && one.key == *key),
    };
    let missing: Vec<_> = known.iter().filter(|key| !is_documented(key)).collect();
    assert!(missing.is_empty(), "keys without a row: {missing:?}");
    let is_known = |one: &&Documented| {
        let mut same = known.iter().filter(|(_, key)| *key == one.key);
        same.any(|(section, _)| one.is_of(section))
    };
    let extra: Vec<_> = documented.iter().filter(|one| !is_known(one)).collect();
    assert!(extra.is_empty(), "rows without a key: {extra:?}");
}

/// A key with its documented default means the same as no key.
#[test]
fn documented_defaults_are_true() {
    let contexts = contexts();
    let mut count = 0;
    for one in documented() {
        let Some(default) = &one.default else {
            continue;
        };
        let line = format!("{} = {default}", one.key);
        let mut tried = 0;
        for context in contexts.iter().filter(|context| one.is_of(context.section)) {
            if context.head.contains(&format!("\n{} = ", one.key)) {
                continue;
            }
            // The key may belong to another kind.
            let machine = |line| parse("f", &context.with(line)).and_then(|of| of.machine());
            let Ok(explicit) = machine(&line) else {
                continue;
            };
            assert_eq!(Ok(explicit), machine(""), "{}\n{line}", context.head);
            tried += 1;
        }
        assert!(tried > 0, "no section accepts {one:?}");
        count += 1;
    }
    assert!(count > 50, "{count}");
}
