//! Figures as comma-separated values, for spreadsheets and data frames.

use crate::file;
use crate::report::Figure;
use anyhow::Context as _;
use std::io::Write;
use std::path::Path;

/// Column names.
const HEAD: [&str; 10] = [
    "plan", "config", "metric", "value", "lo", "hi", "unit", "n", "verdict", "note",
];

/// Writes a header line and one line per figure (RFC 4180).
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn write(out: &mut impl Write, figures: &[Figure]) -> anyhow::Result<()> {
    let mut out = csv::Writer::from_writer(out);
    out.write_record(HEAD)?;
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    for figure in figures {
        let verdict = serde_json::to_value(figure.verdict)?;
        out.write_record([
            figure.plan.as_str(),
            &figure.config,
            &figure.metric,
            &number(figure.value),
            &number(figure.lo),
            &number(figure.hi),
            figure.unit,
            &figure.n.to_string(),
            verdict.as_str().unwrap_or_default(),
            figure.note.as_deref().unwrap_or_default(),
        ])?;
    }
    Ok(out.flush()?)
}

/// Writes `FOLDER/PLAN.csv`, replacing the file of an earlier run.
///
/// # Errors
/// Returns an error if the folder or file cannot be written.
pub fn save(folder: &Path, plan: &str, figures: &[Figure]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    file::replace(&folder.join(format!("{plan}.csv")), |out| {
        write(out, figures)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::ComparisonVerdict;

    #[test]
    fn commas_and_quotes_are_quoted() {
        let mut figure = Figure::single("prof", "session", "cycles.a,b", 1.0);
        figure.note = Some("say \"x\"".to_owned());
        figure.verdict = Some(ComparisonVerdict::SameSign);
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), "prof", &[figure]).unwrap();
        let text = std::fs::read_to_string(folder.path().join("prof.csv")).unwrap();
        assert_eq!(
            text,
            "plan,config,metric,value,lo,hi,unit,n,verdict,note\n\
             prof,session,\"cycles.a,b\",1,1,1,cycles,1,same-sign,\"say \"\"x\"\"\"\n"
        );
    }

    #[test]
    fn unmeasurable_figures_have_no_value() {
        let figure = Figure::not_measurable("base", "a", "throughput", "no TAP");
        let mut out = Vec::new();
        write(&mut out, &[figure]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = text.lines().nth(1).unwrap();
        assert!(line.starts_with("base,a,throughput,,,,"), "{line}");
        assert!(line.ends_with(",not-measurable,no TAP"), "{line}");
    }
}
