//! The command `prof report`: tables and figures.

use super::functions;
pub use super::functions::Listing;
use super::lines;
use super::sums::{COARSE_NOTE, COARSE_SHARE, Denominator, DomainSums, GOOD, outside};
use super::text;
use crate::attribute::rules::Rules;
use crate::attribute::{Attribution, Classing};
use crate::model::{Session, Tier};
use crate::select::Selection;
use figures::correction::Correction;
use figures::report::{Figure, config};
use figures::stats::{CONFIDENCE, ComparisonVerdict, Estimate};
use figures::{clean, csv};
use std::io::Write;

/// Plan name in figures.
const PLAN: &str = "prof";

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tables.
    Text,
    /// JSON lines.
    Json,
    /// Print comma-separated values.
    Csv,
}

/// Writes a report: exact times and the samples of the first event, then the samples of each other
/// event.
///
/// # Errors
/// Returns an error if the session has no such domain, or `out` fails.
pub fn report(
    session: &Session,
    rules: &Rules,
    classing: Classing,
    form: Form,
    listing: &Listing<'_>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let domain = listing.domain;
    let listing = &Listing {
        domain: domain
            .map(|name| super::flame::domain_name(session, name))
            .transpose()?,
        ..*listing
    };
    let mut list = Vec::new();
    for number in 0..session.head.events().count() {
        let session = &*session.of_event(number);
        let found = Attribution::new(session, rules, classing);
        let listing = &Listing {
            only_samples: number > 0,
            ..*listing
        };
        if form == Form::Text {
            let text = text::report(session, &found, classing, listing);
            out.write_all(text.as_bytes())?;
        } else {
            list.extend(figures(session, &found, classing, listing));
        }
    }
    match form {
        Form::Text => {}
        Form::Json => write_json(out, &session.head.provenance, &list)?,
        Form::Csv => csv::write(out, &list)?,
    }
    Ok(())
}

/// Returns the report on one domain as text.
///
/// # Errors
/// Returns an error with the known names if the session has no domain of this name.
pub fn of_domain(session: &Session, domain: &str, symbols: usize) -> anyhow::Result<String> {
    let listing = Listing {
        domain: Some(domain),
        ..Listing::first(symbols)
    };
    let mut out = Vec::new();
    let (rules, form) = (Rules::thesis(), Form::Text);
    report(session, &rules, Classing::Nearest, form, &listing, &mut out)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Returns the figures of a session of one event.
///
/// Totals are exact. Figures by class, function or beneficiary are shares of the samples, times an
/// exact total, which only samples of a clock or of cycles divide. If the samples are unusable, a
/// figure has the reason instead of a value.
#[must_use]
pub fn figures(
    session: &Session,
    found: &Attribution,
    classing: Classing,
    listing: &Listing<'_>,
) -> Vec<Figure> {
    let mut keys = listing.selection.map(Selection::keys).unwrap_or_default();
    if classing == Classing::Flat {
        keys.insert("classing".to_owned(), "flat".to_owned());
    }
    if listing.only_samples {
        keys.insert("event".to_owned(), session.head.event.clone());
    }
    if let Some(class) = listing.class {
        keys.insert("class".to_owned(), class.to_owned());
    }
    let mut to = Figures {
        config: config("session", &keys),
        tier: session.head.tier,
        tsc_hz: session.head.tsc_hz,
        has_losses: !session.losses.is_empty(),
        list: Vec::new(),
    };
    let mut all = DomainSums::of(session, found);
    if let Some(domain) = listing.domain {
        all.retain(|sums| sums.domain.name == domain);
    }
    let denominator = Denominator::of(session);
    let mut total = 0.0;
    for sums in &all {
        let name = sums.domain.name.as_str();
        if let Some(cycles) = sums.cycles.filter(|_| !listing.only_samples) {
            to.exact(&format!("cycles.{name}"), cycles);
            to.exact(&format!("ran_in.{name}"), cycles);
            if sums.counts() {
                total += cycles;
                to.per(name, cycles, &denominator);
            }
        }
        to.samples(sums);
        if !listing.only_samples {
            to.closure(sums);
            to.hops(sums, denominator.packets());
        }
        let packets = denominator.packets().filter(|_| session.head.is_time());
        to.classes(sums, &found.classes, packets);
        to.functions(session, sums, listing);
        to.lines(session, sums, listing);
    }
    if listing.domain.is_some() || listing.only_samples {
        return to.list;
    }
    let seen = |name: &str| all.iter().any(|sums| sums.domain.name == name);
    for domain in session.domains.iter().filter(|d| !seen(&d.name)) {
        if let Some(missing) = &domain.missing {
            to.refused(&format!("cycles.{}", domain.name), missing);
        }
    }
    to.per("total", total, &denominator);
    if session.head.is_time() {
        to.charged_to(&all);
    }
    to.list
}

/// The figures of one configuration, in the order in which they were added.
struct Figures {
    config: String,
    tier: Tier,
    tsc_hz: u64,
    has_losses: bool,
    list: Vec<Figure>,
}

impl Figures {
    fn exact(&mut self, metric: &str, value: f64) {
        let figure = Figure::single(PLAN, &self.config, metric, value);
        self.list.push(figure);
    }

    fn refused(&mut self, metric: &str, why: &str) {
        let figure = Figure::not_measurable(PLAN, &self.config, metric, why);
        self.list.push(figure);
    }

    /// Adds a share of the samples, times `whole`.
    fn share(&mut self, metric: &str, sums: &DomainSums<'_>, count: u64, whole: f64) {
        let [lo, hi] = interval(count, sums.part.samples);
        let estimate = Estimate {
            value: sums.share(count) * whole,
            lo: lo * whole,
            hi: hi * whole,
            n: sums.part.samples as usize,
        };
        let mut figure = Figure::new(PLAN, &self.config, metric, estimate);
        // Wilson's interval is valid for any number of samples.
        figure.covers = Some(CONFIDENCE);
        figure.note = sums.unreliable_because();
        if figure.note.is_some() {
            figure.verdict = Some(ComparisonVerdict::Unresolved);
        }
        self.list.push(figure);
    }

    fn per(&mut self, name: &str, cycles: f64, denominator: &Denominator) {
        let metrics = ["packet", "byte"].map(|unit| format!("cycles_per_{unit}.{name}"));
        if let Some(units) = denominator.packets_and_bytes() {
            for (metric, unit) in metrics.iter().zip(units) {
                self.exact(metric, cycles / unit);
            }
        } else if let Some(why) = denominator.refusal() {
            for metric in &metrics {
                self.refused(metric, why);
            }
        }
    }

    fn samples(&mut self, sums: &DomainSums<'_>) {
        let name = sums.domain.name.as_str();
        self.exact(
            &format!("samples.{name}.delivered"),
            sums.part.samples as f64,
        );
        // Part of a session has no loss ledger.
        for (count, value) in [("expected", sums.expected), ("lost", sums.lost)] {
            if self.has_losses {
                self.exact(&format!("samples.{name}.{count}"), value as f64);
            }
        }
        if let Some(share) = sums.whole_stacks() {
            self.exact(&format!("whole_stacks.{name}"), share);
        }
        if let Some(ratio) = sums.raw_exact {
            let metric = format!("raw_exact.{name}");
            let mut figure = Figure::single(PLAN, &self.config, &metric, ratio);
            figure.note = sums.unreliable_because();
            figure.verdict = Some(match figure.note {
                None => ComparisonVerdict::Equal,
                Some(_) => ComparisonVerdict::Unresolved,
            });
            self.list.push(figure);
        }
    }

    fn closure(&mut self, sums: &DomainSums<'_>) {
        let Some(closure) = sums.closure else { return };
        let metric = format!("closure.{}", sums.domain.name);
        let mut figure = Figure::single(PLAN, &self.config, &metric, closure);
        figure.verdict = Some(if outside(closure, GOOD) {
            ComparisonVerdict::Unresolved
        } else {
            ComparisonVerdict::Equal
        });
        figure.note = sums.correction_because(self.tsc_hz);
        self.list.push(figure);
        if let Some(correction) = sums.correction {
            let metric = format!("corrected_share.{}", sums.domain.name);
            self.exact(&metric, correction.total());
            for (cause, share) in Correction::CAUSES.into_iter().zip(correction.shares()) {
                self.exact(&format!("{metric}.{cause}"), share);
            }
        }
    }

    /// Adds the hops of the ledger. The ledger covers the time between two readings, so its hops
    /// are scaled to the whole session.
    fn hops(&mut self, sums: &DomainSums<'_>, packets: Option<f64>) {
        let (Some(ledger), Some(cycles)) = (&sums.domain.ledger, sums.cycles) else {
            return;
        };
        let covered = ledger.cpu_ns as f64 * self.tsc_hz as f64 / 1e9;
        let Some(packets) = packets.filter(|_| covered > 0.0) else {
            return;
        };
        for (hop, own) in &ledger.hops {
            let metric = format!("cycles_per_packet.{}.hop.{hop}", sums.domain.name);
            self.exact(&metric, *own as f64 / covered * cycles / packets);
        }
    }

    fn classes(&mut self, sums: &DomainSums<'_>, classes: &[String], packets: Option<f64>) {
        if !sums.counts() {
            return;
        }
        let name = sums.domain.name.as_str();
        let refusal = sums.refusal();
        for (class, count) in classes.iter().zip(&sums.part.classes) {
            let metric = format!("share.{name}.class.{class}");
            let per_packet = format!("cycles_per_packet.{name}.class.{class}");
            if let Some(why) = &refusal {
                self.refused(&metric, why);
                continue;
            }
            self.share(&metric, sums, *count, 1.0);
            if let (Some(cycles), Some(packets)) = (sums.cycles, packets) {
                self.share(&per_packet, sums, *count, cycles / packets);
            }
        }
        if refusal.is_none() && !self.tier.is_fine() {
            let metric = format!("share.{name}.resolution");
            let mut figure = Figure::single(PLAN, &self.config, &metric, COARSE_SHARE);
            figure.note = Some(COARSE_NOTE.to_owned());
            self.list.push(figure);
        }
    }

    /// Adds the functions if the listing includes callees or callers.
    fn functions(&mut self, session: &Session, sums: &DomainSums<'_>, listing: &Listing<'_>) {
        let is_listed = listing.children || listing.callers;
        if !is_listed || !sums.counts() || sums.refusal().is_some() {
            return;
        }
        for ((_, symbol), function) in functions::listed(session, sums, listing) {
            let name = format!("{}.function.{symbol}", sums.domain.name);
            self.share(&format!("share.{name}"), sums, function.own, 1.0);
            if listing.children {
                self.share(&format!("total_share.{name}"), sums, function.total, 1.0);
            }
            if listing.callers {
                for ((_, caller), count) in function.callers() {
                    self.share(&format!("share.{name}.from.{caller}"), sums, count, 1.0);
                }
            }
        }
    }

    /// Adds the source lines if the listing includes them.
    fn lines(&mut self, session: &Session, sums: &DomainSums<'_>, listing: &Listing<'_>) {
        if !listing.lines || !sums.counts() || sums.refusal().is_some() {
            return;
        }
        for ((file, line), samples) in lines::by_place(session, sums, listing) {
            let name = format!("{}.line.{file}:{line}", sums.domain.name);
            self.share(&format!("share.{name}"), sums, samples.own, 1.0);
            self.share(&format!("total_share.{name}"), sums, samples.total, 1.0);
        }
    }

    /// Adds each domain's exact time, divided by the beneficiaries of its samples.
    fn charged_to(&mut self, all: &[DomainSums<'_>]) {
        for (who, cycles) in super::sums::charged_to(all) {
            self.exact(&format!("on_behalf_of.{who}"), cycles);
        }
    }
}

/// Returns the 95 % interval of a share (Wilson).
pub(super) fn interval(count: u64, of: u64) -> [f64; 2] {
    const Z: f64 = 1.96;
    let n = of.max(1) as f64;
    let p = count as f64 / n;
    let middle = (p + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    [(middle - half).clamp(0.0, p), (middle + half).clamp(p, 1.0)]
}

/// Writes the provenance, then a line for each figure. Escapes control characters, because the
/// author of the profile controls the provenance.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn write_json(
    out: &mut impl Write,
    provenance: &serde_json::Value,
    figures: &[Figure],
) -> anyhow::Result<()> {
    let provenance = serde_json::json!({ "provenance": provenance }).to_string();
    writeln!(out, "{}", clean::json(&provenance))?;
    for figure in figures {
        writeln!(out, "{}", serde_json::to_string(figure)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
