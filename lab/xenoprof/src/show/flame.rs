//! Flame graphs: one for each domain, and one for all domains.
//!
//! A domain's width is its exact CPU time; its samples only divide it.

use crate::model::{DomainKind, Session};
use anyhow::{Context as _, ensure};
use figures::{clean, file};
use inferno::flamegraph::{self, Options};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Maximum flame graphs of one session.
const PICTURES_MAX: usize = 1024;
/// Maximum bytes of names in one flame graph. Each name counts as often as it is drawn.
const PICTURE_BYTES_MAX: usize = 256 << 20;
/// Maximum bytes of a domain's name in a file name.
const FILE_NAME_MAX: usize = 100;
/// Maximum width in nanoseconds. Up to it, sums of microseconds stay exact and fit.
const WIDTH_MAX_NS: f64 = 1e18;

/// Writes `STEM.svg` with all domains and `STEM-DOMAIN.svg` for each into a folder, or only the
/// flame graph of `only`; returns the paths.
///
/// # Errors
/// The domain does not exist or has no samples, or a file cannot be written.
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
    let sampled: BTreeSet<usize> = session
        .samples
        .iter()
        .map(|s| session.domain_of(s))
        .collect();
    let is_drawn = |index: &usize| {
        let domain = session.domains.get(*index);
        domain.is_some_and(|domain| domain.kind != DomainKind::Idle)
    };
    let drawn: Vec<usize> = sampled.into_iter().filter(is_drawn).collect();
    ensure!(
        drawn.len() <= PICTURES_MAX,
        "{} domains are too many to draw: choose one with --domain",
        drawn.len()
    );
    put(format!("{stem}.svg"), None)?;
    let mut taken = BTreeSet::new();
    for index in drawn {
        let name = session.domains.get(index).map_or("", |domain| &domain.name);
        let mut name = file_name(name);
        // Two domain names may differ only in characters that file names cannot contain.
        if !taken.insert(name.clone()) {
            name = format!("{name}-{index}");
            taken.insert(name.clone());
        }
        put(format!("{stem}-{name}.svg"), Some(index))?;
    }
    Ok(written)
}

/// Returns the index of a domain.
///
/// # Errors
/// The known names.
pub fn domain(session: &Session, name: &str) -> anyhow::Result<usize> {
    let names = || {
        let names: Vec<&str> = session.domains.iter().map(|d| d.name.as_str()).collect();
        figures::Failure::Usage(format!(
            "no domain `{name}`; known domains: {}",
            names.join(", ")
        ))
    };
    let found = session
        .domains
        .iter()
        .position(|domain| domain.name == name);
    found.ok_or_else(|| names().into())
}

/// Returns a domain's name for use in a file name.
fn file_name(domain: &str) -> String {
    let name = clean::line(domain).replace('/', "_");
    let end = name.floor_char_boundary(FILE_NAME_MAX);
    name.get(..end).unwrap_or_default().to_owned()
}

/// Draws one domain, or all domains that are not idle.
///
/// # Errors
/// The session has no samples, or writing to `out` fails.
pub fn picture(session: &Session, domain: Option<usize>, out: impl Write) -> anyhow::Result<()> {
    let lines = folded(session, domain)?;
    ensure!(!lines.is_empty(), "the session has no samples to draw");
    let mut options = Options::default();
    options.title = match domain.and_then(|index| session.domains.get(index)) {
        Some(domain) => clean::line(&domain.name).into_owned(),
        None => "all domains".to_owned(),
    };
    options.subtitle = Some(session.head.tier.text().to_owned());
    options.count_name = "us".to_owned();
    options.deterministic = true;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
        .context("draw a flame graph")
}

/// Returns the samples and the nanoseconds of each domain and stack. A domain's exact time is
/// divided in proportion to its samples.
pub(super) fn times(session: &Session) -> BTreeMap<(usize, u32), (u64, f64)> {
    let mut counts: BTreeMap<(usize, u32), u64> = BTreeMap::new();
    let mut of_domain: BTreeMap<usize, u64> = BTreeMap::new();
    for sample in &session.samples {
        let index = session.domain_of(sample);
        *counts.entry((index, sample.3)).or_default() += 1;
        *of_domain.entry(index).or_default() += 1;
    }
    let most_ns = WIDTH_MAX_NS / session.domains.len().max(1) as f64;
    let time = |((index, stack), count): ((usize, u32), u64)| {
        let domain = session.domains.get(index)?;
        let all = of_domain.get(&index).copied().unwrap_or(1).max(1);
        let sampled_ns = all as f64 * session.head.period as f64;
        let exact_ns = domain.cpu_ns.filter(|ns| *ns > 0);
        let whole_ns = exact_ns.map_or(sampled_ns, |ns| ns as f64).min(most_ns);
        Some((
            (index, stack),
            (count, whole_ns * count as f64 / all as f64),
        ))
    };
    counts.into_iter().filter_map(time).collect()
}

/// Returns lines `domain;outermost;…;innermost MICROSECONDS`.
///
/// # Errors
/// The names exceed [`PICTURE_BYTES_MAX`].
pub(super) fn folded(session: &Session, only: Option<usize>) -> anyhow::Result<Vec<String>> {
    let line = |((index, stack), (_, ns)): ((usize, u32), (u64, f64))| {
        let domain = session.domains.get(index)?;
        if only.is_some_and(|only| only != index)
            || (only.is_none() && domain.kind == DomainKind::Idle)
        {
            return None;
        }
        let us = (ns / 1e3).round().max(1.0);
        let mut names: Vec<Cow<'_, str>> = session
            .frames_of(stack)
            .map(|(_, frame)| plain(&frame.symbol))
            .collect();
        names.push(plain(&domain.name));
        names.reverse();
        Some(format!("{} {us:.0}", names.join(";")))
    };
    let mut bytes = 0;
    let mut lines = Vec::new();
    for text in times(session).into_iter().filter_map(line) {
        bytes += text.len();
        ensure!(
            bytes <= PICTURE_BYTES_MAX,
            "the names of all frames take more than {} MiB: choose a domain with --domain",
            PICTURE_BYTES_MAX >> 20
        );
        lines.push(text);
    }
    Ok(lines)
}

/// Returns a name without the characters that separate frames. A space becomes a no-break space,
/// because the drawing library parses a number after a space as a sample count.
fn plain(name: &str) -> Cow<'_, str> {
    let mut name = clean::line(name);
    if name.contains(';') {
        name = Cow::Owned(name.replace(';', ":"));
    }
    let is_count = |word: &str| word.chars().all(|c| c.is_ascii_digit() || c == '.');
    match name.trim_end().rsplit_once(' ') {
        Some((head, last)) if is_count(last) => Cow::Owned(format!("{head}\u{a0}{last}")),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Sample, Thread};
    use crate::testing::session;
    use quick_xml::Reader;
    use quick_xml::events::Event;

    /// Parses the whole flame graph as XML and returns its texts.
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
    fn flame_graphs_are_well_formed_and_name_functions() {
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
    fn symbols_are_escaped_in_flame_graphs() {
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
    fn widths_are_exact_times() {
        let mut session = session();
        session.domains[0].cpu_ns = Some(300_000_000);
        let lines = folded(&session, Some(0)).unwrap();
        assert_eq!(
            lines,
            [
                "driver;driver::turn::run;shmem::engine::copy 180000",
                "driver;driver::turn::run;tun_get_user;tcp_v4_rcv;tcp_v4_rcv 120000",
            ]
        );
    }

    #[test]
    fn a_trailing_number_is_part_of_the_name() {
        let mut session = session();
        for frame in &mut session.frames {
            frame.symbol = "f 18446744073709551615".to_owned();
        }
        let mut svg = Vec::new();
        picture(&session, Some(0), &mut svg).unwrap();
        let texts = texts(&svg);
        assert!(texts.contains("f\u{a0}18446744073709551615 ("), "{texts}");
        assert!(texts.contains("100,000 us"), "{texts}");
        // Only the flame graph of a comparison shows differences.
        assert!(!texts.contains("%; "), "{texts}");
    }

    #[test]
    fn the_widest_domains_are_drawn() {
        let mut session = session();
        session.head.period = u64::MAX;
        let domain = session.domains[0].clone();
        session.domains.extend(std::iter::repeat_n(domain, 2000));
        for (index, domain) in session.domains.iter_mut().enumerate() {
            domain.cpu_ns = Some(u64::MAX);
            domain.kind = DomainKind::Process;
            domain.name = format!("d{index}");
        }
        let thread = session.threads[0].clone();
        let threads = (0..session.domains.len()).map(|domain| Thread {
            domain: domain as u32,
            ..thread.clone()
        });
        session.threads = threads.collect();
        let sample = session.samples[0];
        let samples = (0..session.threads.len()).map(|n| Sample(0, 0, n as u32, sample.3));
        session.samples = samples.collect();
        picture(&session, None, Vec::new()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let error = files(&session, dir.path(), "x", None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2003 domains are too many to draw: choose one with --domain"
        );
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    }

    #[test]
    fn profiles_that_would_fill_memory_are_rejected() {
        let mut session = session();
        session.frames[0].symbol = "x".repeat(crate::model::NAME_MAX);
        session.stacks = (0..1000u32)
            .map(|n| crate::model::Stack(n.checked_sub(1), 0))
            .collect();
        session.samples = (0..1000).map(|n| Sample(0, 0, 0, n)).collect();
        let error = picture(&session, None, Vec::new()).unwrap_err();
        assert!(
            error.to_string().contains("take more than 256 MiB"),
            "{error}"
        );
    }

    #[test]
    fn file_names_stay_in_the_folder_and_distinct() {
        let mut session = session();
        session.domains[2].name = "../a".to_owned();
        session.domains[0].name = ".._a".to_owned();
        session.threads[1].domain = 2;
        let dir = tempfile::tempdir().unwrap();
        let written = files(&session, dir.path(), "x", None).unwrap();
        let names: Vec<_> = written
            .iter()
            .filter_map(|p| p.strip_prefix(dir.path()).ok())
            .collect();
        let expected = ["x.svg", "x-.._a.svg", "x-.._a-2.svg"].map(Path::new);
        assert_eq!(names, expected);
        session.domains[0].name = "ü".repeat(1000);
        files(&session, dir.path(), "x", None).unwrap();
    }

    #[test]
    fn each_active_domain_has_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let paths = files(&session(), dir.path(), "x", None).unwrap();
        let names: Vec<_> = paths.iter().filter_map(|p| p.file_name()).collect();
        assert_eq!(names, ["x.svg", "x-driver.svg"]);
        let error = files(&session(), dir.path(), "x", Some("drvier")).unwrap_err();
        assert!(
            error.to_string().contains("known domains: driver"),
            "{error}"
        );
        assert!(picture(&session(), Some(2), Vec::new()).is_err());
    }
}
