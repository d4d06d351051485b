//! Flame graphs: one picture of each domain, and one of all.
//!
//! A domain's width is its exact CPU time; its samples only divide it.

use crate::model::{Kind, Session};
use anyhow::{Context as _, ensure};
use figures::{clean, file};
use inferno::flamegraph::{self, Options};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes `STEM.svg` with all domains and `STEM-DOMAIN.svg` for each into a folder; what was
/// written. With `only` that domain's alone.
///
/// # Errors
/// If there is no such domain, no sample, or a file cannot be written.
pub fn files(
    session: &Session,
    folder: &Path,
    stem: &str,
    only: Option<&str>,
) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut written = Vec::new();
    let mut put = |name: String, domain: Option<usize>| -> anyhow::Result<()> {
        let path = folder.join(name);
        file::replace(&path, |out| picture(session, domain, out))?;
        written.push(path);
        Ok(())
    };
    if let Some(only) = only {
        let index = domain(session, only)?;
        put(format!("{stem}-{}.svg", file_name(only)), Some(index))?;
        return Ok(written);
    }
    put(format!("{stem}.svg"), None)?;
    for (index, domain) in session.domains.iter().enumerate() {
        let is_there = session
            .samples
            .iter()
            .any(|s| session.domain_of(s) == index);
        if is_there && domain.kind != Kind::Idle {
            put(
                format!("{stem}-{}.svg", file_name(&domain.name)),
                Some(index),
            )?;
        }
    }
    Ok(written)
}

/// The number of a domain.
///
/// # Errors
/// The names that there are.
pub fn domain(session: &Session, name: &str) -> anyhow::Result<usize> {
    let names = || {
        let names: Vec<&str> = session.domains.iter().map(|d| d.name.as_str()).collect();
        figures::Failure::Usage(format!(
            "no domain `{name}`; there is: {}",
            names.join(", ")
        ))
    };
    let found = session
        .domains
        .iter()
        .position(|domain| domain.name == name);
    found.ok_or_else(|| names().into())
}

fn file_name(domain: &str) -> String {
    clean::line(domain).replace('/', "_")
}

/// Draws one domain, or all that are not idle.
///
/// # Errors
/// If there is no sample, or `out` fails.
pub fn picture(session: &Session, domain: Option<usize>, out: impl Write) -> anyhow::Result<()> {
    let lines = folded(session, domain);
    ensure!(!lines.is_empty(), "there are no samples to draw");
    let mut options = Options::default();
    options.title = match domain.and_then(|index| session.domains.get(index)) {
        Some(domain) => plain(&domain.name),
        None => "all domains".to_owned(),
    };
    options.subtitle = Some(session.head.tier.text().to_owned());
    options.count_name = "us".to_owned();
    options.deterministic = true;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
        .context("draw a flame graph")
}

/// `domain;outermost;…;innermost MICROSECONDS`.
fn folded(session: &Session, only: Option<usize>) -> Vec<String> {
    let mut counts: BTreeMap<(usize, u32), u64> = BTreeMap::new();
    let mut of_domain: BTreeMap<usize, u64> = BTreeMap::new();
    for sample in &session.samples {
        let index = session.domain_of(sample);
        *counts.entry((index, sample.3)).or_default() += 1;
        *of_domain.entry(index).or_default() += 1;
    }
    let line = |((index, stack), count): ((usize, u32), u64)| {
        let domain = session.domains.get(index)?;
        if only.is_some_and(|only| only != index) || (only.is_none() && domain.kind == Kind::Idle) {
            return None;
        }
        let all = of_domain.get(&index).copied().unwrap_or(1).max(1);
        let sampled_ns = all as f64 * session.head.period as f64;
        let exact_ns = domain.cpu_ns.filter(|ns| *ns > 0);
        let whole_ns = exact_ns.map_or(sampled_ns, |ns| ns as f64);
        let us = (whole_ns * count as f64 / all as f64 / 1e3)
            .round()
            .max(1.0);
        let mut names: Vec<String> = session
            .frames_of(stack)
            .map(|(_, frame)| plain(&frame.symbol))
            .collect();
        names.push(plain(&domain.name));
        names.reverse();
        Some(format!("{} {us:.0}", names.join(";")))
    };
    counts.into_iter().filter_map(line).collect()
}

/// A name without what separates frames.
fn plain(name: &str) -> String {
    clean::line(name).replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session;
    use quick_xml::Reader;
    use quick_xml::events::Event;

    /// Reads the whole picture as XML; its texts.
    fn texts(svg: &[u8]) -> String {
        let mut reader = Reader::from_reader(svg);
        reader.config_mut().check_end_names = true;
        let (mut buffer, mut depth, mut texts) = (Vec::new(), 0i32, String::new());
        loop {
            match reader.read_event_into(&mut buffer).expect("well-formed") {
                Event::Start(_) => depth += 1,
                Event::End(_) => depth -= 1,
                Event::Text(text) => texts.push_str(&text),
                Event::Eof => break,
                _ => {}
            }
            buffer.clear();
        }
        assert_eq!(depth, 0);
        texts
    }

    #[test]
    fn pictures_are_well_formed_and_name_the_kernels_functions_and_ours() {
        let mut session = session();
        session.frames[1].symbol = "<shmem::Span as a::B<\"x\">>::copy; & more".to_owned();
        let mut svg = Vec::new();
        picture(&session, None, &mut svg).unwrap();
        let texts = texts(&svg);
        for name in ["driver", "tcp_v4_rcv", "driver::turn::run"] {
            assert!(texts.contains(name), "{name}");
        }
        assert!(!texts.contains("pv_native_safe_halt"), "idle is not drawn");
    }

    #[test]
    fn a_symbol_says_nothing_to_who_looks_at_it() {
        let mut session = session();
        session.frames[1].symbol = "a\x1b]0;x\x07\u{202e};b\n\u{9b}".to_owned();
        session.domains[0].name = "driver\x1b[2J".to_owned();
        session.domains[0].ledger.as_mut().unwrap().hops = [("copy\x1b[2J".to_owned(), 1)].into();
        let active = |text: &str| text.chars().any(|c| c != '\n' && c.is_control());
        let mut svg = Vec::new();
        picture(&session, None, &mut svg).unwrap();
        assert!(!active(&texts(&svg)), "{}", texts(&svg));
        session.clean();
        let mut bytes = Vec::new();
        crate::model::file::write(&mut bytes, &session).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(!text.contains("u001b") && !active(&text), "{text}");
    }

    #[test]
    fn a_domain_is_as_wide_as_its_exact_time() {
        let mut session = session();
        session.domains[0].cpu_ns = Some(300_000_000);
        let lines = folded(&session, Some(0));
        assert_eq!(
            lines,
            [
                "driver;driver::turn::run;shmem::engine::copy 180000",
                "driver;driver::turn::run;tun_get_user;tcp_v4_rcv;tcp_v4_rcv 120000",
            ]
        );
    }

    #[test]
    fn a_file_for_each_domain_that_ran() {
        let dir = tempfile::tempdir().unwrap();
        let paths = files(&session(), dir.path(), "x", None).unwrap();
        let names: Vec<_> = paths.iter().filter_map(|p| p.file_name()).collect();
        assert_eq!(names, ["x.svg", "x-driver.svg"]);
        let error = files(&session(), dir.path(), "x", Some("drvier")).unwrap_err();
        assert!(error.to_string().contains("there is: driver"), "{error}");
        assert!(picture(&session(), Some(2), Vec::new()).is_err());
    }
}
