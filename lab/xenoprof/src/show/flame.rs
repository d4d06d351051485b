//! Flame graphs: one for each domain, and one for all domains.
//!
//! A domain's width is its exact CPU time; its samples only divide it.

use super::palette::{Palette, plain};
use super::sums::{Denominator, counts};
use crate::attribute::rules::Rules;
use crate::model::{DomainKind, ProfiledDomain, Session};
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
/// Maximum width in nanoseconds. Sums of microseconds up to this width are exact and do not
/// overflow.
const WIDTH_MAX_NS: f64 = 1e18;
/// Maximum width of a session in a comparison: the drawing library multiplies differences, up to
/// 150 times.
const COMPARED_MAX: f64 = 1e16;

/// Writes `STEM.svg` with all domains and `STEM-DOMAIN.svg` for each into a folder, or only the
/// flame graph of `only`; returns the paths.
///
/// # Errors
/// Returns an error if the domain does not exist or has no samples, or a file cannot be written.
pub fn files(
    session: &Session,
    rules: &Rules,
    folder: &Path,
    stem: &str,
    only: Option<&str>,
) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut written = Vec::new();
    let mut put = |name: String, domain: Option<usize>| -> anyhow::Result<()> {
        let path = folder.join(name);
        file::replace(&path, |out| picture(session, rules, domain, out))?;
        written.push(path);
        Ok(())
    };
    if let Some(only) = only {
        let index = domain(session, only)?;
        let name = file_name(name_of(session, index));
        put(format!("{stem}-{name}.svg"), Some(index))?;
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
        let mut name = file_name(name_of(session, index));
        // Two domain names may differ only in characters that file names cannot contain.
        if !taken.insert(name.clone()) {
            name = format!("{name}-{index}");
            taken.insert(name.clone());
        }
        put(format!("{stem}-{name}.svg"), Some(index))?;
    }
    Ok(written)
}

/// Returns the index of the domain `name`. The name may be the last part of a domain's name, such
/// as `driver` for `lane/driver`, if no other domain's name ends with it.
///
/// # Errors
/// Returns an error with the possible names if no domain or several domains have this name.
pub fn domain(session: &Session, name: &str) -> anyhow::Result<usize> {
    let names: Vec<&str> = session.domains.iter().map(|d| d.name.as_str()).collect();
    if let Some(index) = names.iter().position(|whole| *whole == name) {
        return Ok(index);
    }
    let is_end = |whole: &str| whole.rsplit_once('/').is_some_and(|(_, end)| end == name);
    let all = names.iter().copied().enumerate();
    let (indices, ends): (Vec<_>, Vec<_>) = all.filter(|(_, whole)| is_end(whole)).unzip();
    match indices.as_slice() {
        [index] => Ok(*index),
        [] => Err(unknown(format!(
            "no domain `{name}`; known domains: {}",
            names.join(", ")
        ))),
        _ => Err(unknown(format!(
            "`{name}` is the end of several domains' names: {}",
            ends.join(", ")
        ))),
    }
}

fn unknown(what: String) -> anyhow::Error {
    figures::Failure::Usage(what).into()
}

/// Returns the whole name of the domain `name`, as [`domain`] finds it.
///
/// # Errors
/// See [`domain`].
pub fn domain_name<'s>(session: &'s Session, name: &str) -> anyhow::Result<&'s str> {
    Ok(name_of(session, domain(session, name)?))
}

fn name_of(session: &Session, index: usize) -> &str {
    session.domains.get(index).map_or("", |of| &of.name)
}

/// Returns a domain's name for use in a file name.
fn file_name(domain: &str) -> String {
    let name = clean::line(domain).replace('/', "_");
    let end = name.floor_char_boundary(FILE_NAME_MAX);
    name.get(..end).unwrap_or_default().to_owned()
}

/// Draws one domain, or all domains that are not idle. In a picture of several domains, processes
/// that belong to no domain are drawn without their functions.
///
/// # Errors
/// Returns an error if the session has no samples, or writing to `out` fails.
pub fn picture(
    session: &Session,
    rules: &Rules,
    domain: Option<usize>,
    out: impl Write,
) -> anyhow::Result<()> {
    let lines = lines(session, is_drawn(domain), domain.is_none())?;
    ensure!(!lines.is_empty(), "the session has no samples to draw");
    let ns: f64 = lines.values().sum();
    let name = match domain.and_then(|index| session.domains.get(index)) {
        Some(domain) => clean::line(&domain.name).into_owned(),
        None => "all domains".to_owned(),
    };
    let has_functions = |index: usize| match domain {
        Some(only) => only == index,
        None => session
            .domains
            .get(index)
            .is_some_and(|domain| !matches!(domain.kind, DomainKind::Idle | DomainKind::Other)),
    };
    let samples = times(session)
        .into_iter()
        .map(|(of, (count, _))| (of, count));
    let stacks = samples.filter(|((index, _), _)| has_functions(*index));
    let palette = Palette::new(session, rules, stacks);
    let (legend, mut colors) = (palette.legend(rules), palette.colors);
    let mut options = Options::default();
    options.title = format!("{name}: {:.2} s of CPU time", ns / 1e9);
    options.notes = session.head.tier.text().to_owned();
    options.count_name = "us".to_owned();
    options.palette_map = Some(&mut colors);
    draw(options, &texts(&lines), &legend, out)
}

/// Draws the differences of two sessions: each stack is as wide as in B, red if its cycles per
/// packet grew from A, blue if they shrank. Without packets in both sessions, shares of the time
/// are compared.
///
/// # Errors
/// Returns an error if a session has no samples, or writing to `out` fails.
pub fn differences(
    [a, b]: [&Session; 2],
    domain: Option<&str>,
    out: impl Write,
) -> anyhow::Result<()> {
    let units = [a, b].map(|session| Denominator::of(session).packets());
    let mut stacks: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    for (at, session) in [a, b].into_iter().enumerate() {
        let only = domain.map(|name| self::domain(session, name)).transpose()?;
        let which = |index: usize, domain: &ProfiledDomain| match only {
            Some(only) => only == index,
            None => counts(domain),
        };
        let lines = lines(session, which, false)?;
        let sum: f64 = lines.values().sum();
        ensure!(sum > 0.0, "a session has no samples to draw");
        let per_ns = session.head.tsc_hz as f64 / 1e9;
        let factor = match units {
            [Some(_), Some(_)] => 1e3 * per_ns / units.get(at).copied().flatten().unwrap_or(1.0),
            _ => 1e6 / sum,
        };
        // A hostile author of a session can choose the rate of the TSC, and thus an arbitrary
        // factor.
        let factor = factor.min(COMPARED_MAX / sum);
        for (line, ns) in lines {
            if let Some(value) = stacks.entry(line).or_default().get_mut(at) {
                *value += ns * factor;
            }
        }
    }
    let lines: Vec<String> = stacks
        .into_iter()
        .map(|(line, [a, b])| format!("{line} {a:.0} {b:.0}"))
        .collect();
    let mut options = Options::default();
    options.title = format!("{}: A to B", clean::line(domain.unwrap_or("all domains")));
    options.count_name = match units {
        [Some(_), Some(_)] => "cycles per 1000 packets".to_owned(),
        _ => "millionths of the time".to_owned(),
    };
    let legend = "<g id=\"legend\"><text x=\"10\" y=\"48\">red: grew from A to B, blue: shrank; \
                  widths are those of B</text></g>";
    draw(options, &lines, legend, out)
}

/// Draws folded stacks, with a legend below the title.
fn draw(
    mut options: Options<'_>,
    lines: &[String],
    legend: &str,
    mut out: impl Write,
) -> anyhow::Result<()> {
    // The legend takes the place of the subtitle.
    options.subtitle = Some(String::new());
    options.deterministic = true;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)
        .context("draw a flame graph")?;
    let svg = String::from_utf8(svg).context("draw a flame graph")?;
    let (head, rest) = svg
        .split_once("<text id=\"subtitle\"")
        .unwrap_or((&svg, ""));
    let rest = rest.split_once("</text>").map_or("", |(_, rest)| rest);
    for part in [head, legend, rest] {
        out.write_all(part.as_bytes())?;
    }
    Ok(())
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
/// Returns an error if the names exceed [`PICTURE_BYTES_MAX`].
pub(super) fn folded(session: &Session, only: Option<usize>) -> anyhow::Result<Vec<String>> {
    Ok(texts(&lines(session, is_drawn(only), false)?))
}

fn texts(lines: &BTreeMap<String, f64>) -> Vec<String> {
    let text = |(line, ns): (&String, &f64)| format!("{line} {:.0}", (ns / 1e3).round().max(1.0));
    lines.iter().map(text).collect()
}

/// Returns nanoseconds by folded stack of the domains in `which`. With `are_others_short`,
/// processes outside of all domains have no functions.
fn lines(
    session: &Session,
    which: impl Fn(usize, &ProfiledDomain) -> bool,
    are_others_short: bool,
) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut bytes = 0;
    let mut lines: BTreeMap<String, f64> = BTreeMap::new();
    for ((index, stack), (_, ns)) in times(session) {
        let Some(domain) = session.domains.get(index) else {
            continue;
        };
        if !which(index, domain) {
            continue;
        }
        let mut names: Vec<Cow<'_, str>> = Vec::new();
        if !are_others_short || domain.kind != DomainKind::Other {
            let frames = session.frames_of(stack);
            names.extend(frames.map(|(_, frame)| plain(&frame.symbol)));
        }
        names.push(plain(&domain.name));
        names.reverse();
        let line = names.join(";");
        bytes += line.len();
        ensure!(
            bytes <= PICTURE_BYTES_MAX,
            "the names of all frames take more than {} MiB: choose a domain with --domain",
            PICTURE_BYTES_MAX >> 20
        );
        *lines.entry(line).or_default() += ns;
    }
    Ok(lines)
}

/// Returns whether a picture shows a domain: the picture of the domain `only`, or that of all
/// domains that are not idle.
fn is_drawn(only: Option<usize>) -> impl Fn(usize, &ProfiledDomain) -> bool {
    move |index, domain| match only {
        Some(only) => only == index,
        None => domain.kind != DomainKind::Idle,
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
    fn texts_of(svg: &[u8]) -> String {
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
        picture(&session, &Rules::thesis(), None, &mut svg).unwrap();
        let texts = texts_of(&svg);
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
        picture(&session, &Rules::thesis(), None, &mut svg).unwrap();
        assert!(!active(&texts_of(&svg)), "{}", texts_of(&svg));
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

    /// Returns the colour of the frame with this function.
    fn color_of<'a>(svg: &'a str, function: &str) -> &'a str {
        let title = format!("<title>{function} (");
        let (_, frame) = svg.split_once(&title).expect("the function is drawn");
        let (_, color) = frame.split_once("fill=\"").expect("a frame has a colour");
        color.split('"').next().unwrap()
    }

    #[test]
    fn colors_are_those_of_the_legend() {
        let mut svg = Vec::new();
        picture(&session(), &Rules::thesis(), None, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        let (_, legend) = svg.split_once("<g id=\"legend\">").unwrap();
        let (legend, _) = legend.split_once("</g>").unwrap();
        let colors: Vec<&str> = legend.split("fill=\"").skip(1).collect();
        let of = |class: &str| {
            let at = colors
                .iter()
                .position(|rest| rest.contains(&format!(">{class}<")));
            let of = |at: usize| colors[at].split('"').next().unwrap();
            [of(at.unwrap() - 1), of(at.unwrap())]
        };
        assert_eq!(color_of(&svg, "shmem::engine::copy"), of("copy")[0]);
        assert_eq!(color_of(&svg, "tcp_v4_rcv"), of("network")[1]);
        assert!(!legend.contains("netfront"), "only classes in the picture");
    }

    #[test]
    fn a_name_has_the_class_of_most_samples() {
        let mut session = session();
        // The frames are netback in the driver domain, with 60 samples, and netfront in the guest,
        // with one sample.
        session.frames[1].symbol = "vif::send".to_owned();
        session.threads.push(Thread {
            domain: 2,
            ..session.threads[0].clone()
        });
        session.samples.push(Sample(0, 0, 2, 1));
        let mut svg = Vec::new();
        picture(&session, &Rules::thesis(), None, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(
            svg.contains(">netback<") && !svg.contains(">netfront<"),
            "{svg}"
        );
        let all = color_of(&svg, "vif::send").to_owned();
        let mut svg = Vec::new();
        picture(&session, &Rules::thesis(), Some(0), &mut svg).unwrap();
        assert_eq!(color_of(&String::from_utf8(svg).unwrap(), "vif::send"), all);
    }

    #[test]
    fn other_processes_have_no_functions_among_domains() {
        let mut session = session();
        session.domains[0].kind = DomainKind::Other;
        let all = lines(&session, is_drawn(None), true).unwrap();
        assert_eq!(all.into_keys().collect::<Vec<_>>(), ["driver"]);
        assert_eq!(lines(&session, is_drawn(Some(0)), false).unwrap().len(), 2);
    }

    #[test]
    fn differences_are_per_packet() {
        let (a, mut b) = (session(), session());
        b.domains[0].traffic.as_mut().unwrap().frames = 2000;
        b.domains[0].traffic.as_mut().unwrap().bytes = 2 * 1_514_000;
        let mut svg = Vec::new();
        differences([&a, &b], Some("driver"), &mut svg).unwrap();
        let texts = texts_of(&svg);
        assert!(texts.contains("driver: A to B"), "{texts}");
        // The widths are cycles of 1000 packets in B: half of those in A.
        let copy = "shmem::engine::copy (69,000,000 cycles per 1000 packets";
        assert!(texts.contains(copy), "{texts}");
        assert!(differences([&a, &b], Some("web"), Vec::new()).is_err());
    }

    #[test]
    fn the_largest_rate_is_drawn() {
        let mut b = session();
        b.head.tsc_hz = u64::MAX;
        b.domains[0].cpu_ns = Some(u64::MAX);
        let mut svg = Vec::new();
        differences([&session(), &b], Some("driver"), &mut svg).unwrap();
        let texts = texts_of(&svg);
        let copy = "shmem::engine::copy (6,000,000,000,000,000 cycles";
        assert!(texts.contains(copy), "{texts}");
    }

    #[test]
    fn a_trailing_number_is_part_of_the_name() {
        let mut session = session();
        for frame in &mut session.frames {
            frame.symbol = "f 18446744073709551615".to_owned();
        }
        let mut svg = Vec::new();
        picture(&session, &Rules::thesis(), Some(0), &mut svg).unwrap();
        let texts = texts_of(&svg);
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
        picture(&session, &Rules::thesis(), None, Vec::new()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let error = files(&session, &Rules::thesis(), dir.path(), "x", None).unwrap_err();
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
            .map(|n| crate::model::CallStack(n.checked_sub(1), 0))
            .collect();
        session.samples = (0..1000).map(|n| Sample(0, 0, 0, n)).collect();
        let error = picture(&session, &Rules::thesis(), None, Vec::new()).unwrap_err();
        assert!(
            error.to_string().contains("take more than 256 MiB"),
            "{error}"
        );
    }

    #[test]
    fn a_domain_is_found_by_the_end_of_its_name() {
        let mut session = session();
        session.domains[0].name = "lane/driver".to_owned();
        assert_eq!(domain(&session, "driver").unwrap(), 0);
        session.domains[2].name = "frames/driver".to_owned();
        let error = domain(&session, "driver").unwrap_err().to_string();
        assert!(error.contains("lane/driver, frames/driver"), "{error}");
    }

    #[test]
    fn file_names_stay_in_the_folder_and_distinct() {
        let mut session = session();
        session.domains[2].name = "../a".to_owned();
        session.domains[0].name = ".._a".to_owned();
        session.threads[1].domain = 2;
        let dir = tempfile::tempdir().unwrap();
        let written = files(&session, &Rules::thesis(), dir.path(), "x", None).unwrap();
        let names: Vec<_> = written
            .iter()
            .filter_map(|p| p.strip_prefix(dir.path()).ok())
            .collect();
        let expected = ["x.svg", "x-.._a.svg", "x-.._a-2.svg"].map(Path::new);
        assert_eq!(names, expected);
        session.domains[0].name = "ü".repeat(1000);
        files(&session, &Rules::thesis(), dir.path(), "x", None).unwrap();
    }

    #[test]
    fn each_active_domain_has_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let paths = files(&session(), &Rules::thesis(), dir.path(), "x", None).unwrap();
        let names: Vec<_> = paths.iter().filter_map(|p| p.file_name()).collect();
        assert_eq!(names, ["x.svg", "x-driver.svg"]);
        let error = files(
            &session(),
            &Rules::thesis(),
            dir.path(),
            "x",
            Some("drvier"),
        )
        .unwrap_err();
        assert!(
            error.to_string().contains("known domains: driver"),
            "{error}"
        );
        assert!(picture(&session(), &Rules::thesis(), Some(2), Vec::new()).is_err());
    }
}
