//! The command `prof top`: shows the last interval repeatedly.

use super::cells::shortened;
use super::sums::{DomainSums, SAMPLES_MIN};
use crate::attribute::rules::Rules;
use crate::attribute::{Attribution, Classing};
use crate::host::cpus::raw_ns;
use crate::host::process;
use crate::host::watch::Watch;
use crate::model::{Head, Session};
use crate::record::{RecordOptions, open};
use crate::resolve::{Resolver, Symbolizer};
use crate::sampler::parse::PerfRecord;
use anyhow::Context as _;
use figures::report::number;
use figures::table::table;
use figures::{Failure, interrupt};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Time that a record waits for older records from other rings.
const SETTLE_NS: u64 = 200_000_000;
/// Maximum time between reads of the rings.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Number of functions shown.
const FUNCTIONS: usize = 12;

/// Display options.
#[derive(Clone, Copy, Debug)]
pub struct TopView {
    /// Time between two screens.
    pub interval: Duration,
    /// Number of screens. Unset: until Ctrl-C.
    pub count: Option<u64>,
    /// Options for finding classes.
    pub classing: Classing,
    /// Whether to print one JSON object per screen.
    pub json: bool,
}

/// Shows running code until Ctrl-C.
///
/// # Errors
/// Returns an error if this machine or user cannot sample.
pub fn top(options: &RecordOptions, rules: &Rules, view: TopView) -> anyhow::Result<()> {
    interrupt::watch();
    let named = options.domains()?;
    let (mut sampler, cpus) = open(options)?;
    let [event] = sampler.events() else {
        return Err(Failure::Usage("`prof top` shows one event: name one".to_owned()).into());
    };
    let sampled = event.sampled();
    let mut head = Head {
        event: sampled.event,
        tier: sampled.tier,
        period: sampled.period,
        cpus,
        tsc_hz: shmem::time::tsc_hz(),
        ..Head::default()
    };
    let mut watch = Watch::new(named, options.scope());
    let mut resolver = Resolver::new(0);
    let mut symbolizer = Symbolizer::new(options.kallsyms.clone());
    sampler.start()?;
    for pid in watch.pids().collect::<Vec<_>>() {
        resolver.process(pid, &process::mappings(pid));
    }
    let mut pending: Vec<PerfRecord> = Vec::new();
    let mut used = BTreeMap::new();
    let mut pictures = 0;
    while view.count.is_none_or(|count| pictures < count) {
        let from = Instant::now();
        while from.elapsed() < view.interval {
            match interrupt::check() {
                Err(Failure::Interrupted) => return Ok(()),
                other => other?,
            }
            sampler.wait(CHECK_INTERVAL);
            let _nonsense = sampler.drain(&mut pending);
        }
        pending.sort_by_key(|record| record.time_ns);
        let settled = raw_ns().saturating_sub(SETTLE_NS);
        let later = pending.partition_point(|record| record.time_ns < settled);
        for record in pending.drain(..later) {
            resolver.take(record);
        }
        watch.scan();
        head.ran_ns = from.elapsed().as_nanos() as u64;
        let session = interval(&head, &watch, &mut resolver, &mut symbolizer, &mut used);
        let found = Attribution::new(&session, rules, view.classing);
        match show(&session, &found, view.json) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            shown => shown.context("write to standard output")?,
        }
        pictures += 1;
    }
    Ok(())
}

/// Returns the last interval as a session, with the CPU times since the previous one.
fn interval(
    head: &Head,
    watch: &Watch,
    resolver: &mut Resolver,
    symbolizer: &mut Symbolizer,
    used: &mut BTreeMap<String, u64>,
) -> Session {
    let mut assigned = watch.domains(resolver.parents());
    let mut session = resolver.session(symbolizer, |pid| assigned.of(pid));
    resolver.forget_samples();
    session.domains = assigned.domains;
    session.clean();
    session.head = head.clone();
    for domain in &mut session.domains {
        if let Some(ns) = domain.cpu_ns {
            let before = used.insert(domain.name.clone(), ns).unwrap_or(0);
            domain.cpu_ns = Some(ns.saturating_sub(before));
        }
    }
    session
}

fn show(session: &Session, found: &Attribution, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", object(session, found))?;
    } else {
        if out.is_terminal() {
            // Clears the screen and moves the cursor to the upper left corner.
            write!(out, "\x1b[2J\x1b[H")?;
        }
        out.write_all(text(session, found).as_bytes())?;
    }
    out.flush()
}

fn object(session: &Session, found: &Attribution) -> serde_json::Value {
    let ran_ns = session.head.ran_ns.max(1) as f64;
    let domains: serde_json::Map<String, serde_json::Value> = DomainSums::of(session, found)
        .iter()
        .map(|sums| {
            let classes: BTreeMap<&String, f64> = found
                .classes
                .iter()
                .zip(&sums.part.classes)
                .map(|(class, count)| (class, sums.share(*count)))
                .collect();
            let enough = sums.part.samples >= SAMPLES_MIN;
            let value = serde_json::json!({
                "cpu": sums.domain.cpu_ns.map(|ns| ns as f64 / ran_ns),
                "samples": sums.part.samples,
                "classes": enough.then_some(classes),
            });
            (sums.domain.name.clone(), value)
        })
        .collect();
    serde_json::json!({
        "seconds": ran_ns / 1e9,
        "tier": session.head.tier,
        "domains": domains,
    })
}

fn text(session: &Session, found: &Attribution) -> String {
    let ran_ns = session.head.ran_ns.max(1) as f64;
    let all = DomainSums::of(session, found);
    let mut header = vec!["domain", "CPU %", "samples"];
    header.extend(found.classes.iter().map(String::as_str));
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|sums| {
            let cpu = sums.domain.cpu_ns.map(|ns| ns as f64 / ran_ns * 100.0);
            let mut row = vec![
                sums.domain.name.clone(),
                cpu.map_or_else(|| "–".to_owned(), |cpu| format!("{cpu:.1}")),
                number(sums.part.samples as f64),
            ];
            let enough = sums.part.samples >= SAMPLES_MIN && sums.counts();
            row.extend(sums.part.classes.iter().map(|count| match enough {
                true => format!("{:.0}", sums.share(*count) * 100.0),
                false => "–".to_owned(),
            }));
            row
        })
        .collect();
    let mut functions: Vec<(u64, &str, &str, &str)> = all
        .iter()
        .filter(|sums| sums.counts())
        .flat_map(|sums| {
            let name = sums.domain.name.as_str();
            let symbols = sums.part.symbols.iter();
            symbols.map(move |((module, symbol), n)| (*n, name, symbol.as_str(), module.as_str()))
        })
        .collect();
    functions.sort_by(|x, y| y.0.cmp(&x.0).then(x.1.cmp(y.1)));
    let functions: Vec<Vec<String>> = functions
        .into_iter()
        .take(FUNCTIONS)
        .map(|(n, domain, symbol, module)| {
            let symbol = shortened(symbol);
            vec![symbol, module.to_owned(), domain.to_owned(), n.to_string()]
        })
        .collect();
    let mut out = String::new();
    let _infallible = writeln!(
        out,
        "{:.1} s · {} · {}\n\n{}\n\n{}\n",
        ran_ns / 1e9,
        session.head.event,
        session.head.tier.text(),
        table(&header, &rows),
        table(&["function", "module", "domain", "samples"], &functions)
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session;

    #[test]
    fn a_screen_has_all_domains_and_busiest_functions() {
        let session = session();
        let found = Attribution::new(&session, &Rules::thesis(), Classing::Nearest);
        let text = text(&session, &found);
        assert!(
            text.contains("driver") && text.contains("shmem::engine::copy"),
            "{text}"
        );
        let object = object(&session, &found);
        assert_eq!(object["domains"]["driver"]["cpu"], 0.5);
        assert_eq!(object["domains"]["driver"]["classes"]["copy"], 0.6);
        assert_eq!(
            object["domains"]["guest"]["classes"],
            serde_json::Value::Null
        );
    }
}
