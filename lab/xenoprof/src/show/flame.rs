//! Flame graphs: one for each domain, and one for all domains.
//!
//! A domain's width is its exact CPU time; its samples only divide it. Pictures are of the first
//! event. If it does not measure time, widths are its occurrences.

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
    let session = &*session.of_event(0);
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
    let session = &*session.of_event(0);
    let lines = lines(session, is_drawn(domain), domain.is_none())?;
    ensure!(!lines.is_empty(), "the session has no samples to draw");
    let sum: f64 = lines.values().sum();
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
    let (title, unit) = match session.head.is_time() {
        true => (format!("{:.2} s of CPU time", sum / 1e9), "us".to_owned()),
        false => {
            let event = clean::line(&session.head.event).into_owned();
            (format!("{sum:.0} {event}"), event)
        }
    };
    options.title = format!("{name}: {title}");
    options.notes = session.head.tier.text().to_owned();
    options.count_name = unit;
    options.palette_map = Some(&mut colors);
    draw(options, &texts(session, &lines), &legend, out)
}

/// Draws the differences of two sessions: each stack is as wide as in B, red if its cycles per
/// packet grew from A, blue if they shrank. Without packets in both sessions, shares of the time
/// are compared. Events that do not measure time are compared instead of cycles.
///
/// # Errors
/// Returns an error if the events differ, a session has no samples, or writing to `out` fails.
pub fn differences(
    [a, b]: [&Session; 2],
    domain: Option<&str>,
    out: impl Write,
) -> anyhow::Result<()> {
    let (a, b) = (&*a.of_event(0), &*b.of_event(0));
    super::diff::comparable(a, b)?;
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
        let per_ns = match session.head.is_time() {
            true => session.head.tsc_hz as f64 / 1e9,
            false => 1.0,
        };
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
    let counted = match b.head.is_time() {
        true => "cycles",
        false => &b.head.event,
    };
    options.title = format!("{}: A to B", clean::line(domain.unwrap_or("all domains")));
    options.count_name = match units {
        [Some(_), Some(_)] => format!("{} per 1000 packets", clean::line(counted)),
        _ => format!("millionths of the {}", clean::line(b.head.whole())),
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

/// Returns the samples of the first event of each domain and stack, and their width: nanoseconds,
/// or occurrences of an event that does not measure time. A domain's exact time is divided in
/// proportion to its samples.
pub(super) fn times(session: &Session) -> BTreeMap<(usize, u32), (u64, f64)> {
    let mut counts: BTreeMap<(usize, u32), u64> = BTreeMap::new();
    let mut of_domain: BTreeMap<usize, u64> = BTreeMap::new();
    for sample in &session.samples {
        let index = session.domain_of(sample);
        *counts.entry((index, sample.3)).or_default() += 1;
        *of_domain.entry(index).or_default() += 1;
    }
    let widest = WIDTH_MAX_NS / session.domains.len().max(1) as f64;
    let time = |((index, stack), count): ((usize, u32), u64)| {
        let domain = session.domains.get(index)?;
        let all = of_domain.get(&index).copied().unwrap_or(1).max(1);
        let counted = all as f64 * session.head.period as f64;
        let is_time = session.head.is_time();
        let exact_ns = domain.cpu_ns.filter(|ns| *ns > 0 && is_time);
        let whole = exact_ns.map_or(counted, |ns| ns as f64).min(widest);
        Some(((index, stack), (count, whole * count as f64 / all as f64)))
    };
    counts.into_iter().filter_map(time).collect()
}

/// Returns lines `domain;outermost;…;innermost N`: microseconds, or occurrences of an event that
/// does not measure time.
///
/// # Errors
/// Returns an error if the names exceed [`PICTURE_BYTES_MAX`].
pub(super) fn folded(session: &Session, only: Option<usize>) -> anyhow::Result<Vec<String>> {
    let session = &*session.of_event(0);
    let lines = lines(session, is_drawn(only), false)?;
    Ok(texts(session, &lines))
}

fn texts(session: &Session, lines: &BTreeMap<String, f64>) -> Vec<String> {
    let per_unit = match session.head.is_time() {
        true => 1e3,
        false => 1.0,
    };
    let text = |(line, width): (&String, &f64)| {
        let units = (width / per_unit).round().max(1.0);
        format!("{line} {units:.0}")
    };
    lines.iter().map(text).collect()
}

/// Returns widths by folded stack of the domains in `which`. With `are_others_short`,
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
mod tests;
