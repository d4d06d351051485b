//! An annotation as text.

use super::Annotation;
use super::counts::TimeShare;
use crate::show::lines::short_path;
use std::fmt::Write as _;

/// Width of a share.
const SHARE: usize = 7;

impl Annotation {
    /// Returns the source lines and the instructions with a column for each domain.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("{}\n{}\n", self.function, self.module);
        if self.whole != "time" {
            let _infallible = writeln!(out, "% of the {}", self.whole);
        }
        out.push('\n');
        let width = self.domains.iter().map(|name| name.chars().count()).max();
        let width = width.unwrap_or(0).max("domain".len());
        let _infallible = writeln!(
            out,
            "{:width$} {:>SHARE$} {:>SHARE$}",
            "domain", "self %", "total %"
        );
        for (name, share) in self.domains.iter().zip(&self.shares) {
            let _infallible = writeln!(out, "{name:width$} {}", own_and_total(*share));
        }
        self.lines_text(&mut out);
        self.instructions_text(&mut out);
        for note in &self.notes {
            let _infallible = writeln!(out, "\n{note}.");
        }
        out
    }

    fn lines_text(&self, out: &mut String) {
        let width = 2 * SHARE + 1;
        let mut previous: Option<&super::AnnotatedLine> = None;
        for line in &self.lines {
            if previous.is_none_or(|previous| previous.file != line.file) {
                let _infallible = writeln!(out, "\n{}", line.file);
                self.header(out, width);
                let header = format!("{:>SHARE$} {:>SHARE$} ", "self %", "total %");
                let _infallible = writeln!(out, "{}", header.repeat(self.domains.len()).trim_end());
            } else if previous.is_some_and(|previous| previous.line + 1 < line.line) {
                out.push_str("…\n");
            }
            previous = Some(line);
            for at in 0..self.domains.len() {
                let share = line.shares.get(at).copied();
                let text = share.map_or_else(String::new, own_and_total);
                let _infallible = write!(out, "{text:width$} ");
            }
            let (number, text) = (line.line, line.text.as_deref().unwrap_or("?"));
            let _infallible = writeln!(out, "{number:>5}  {text}");
        }
    }

    fn instructions_text(&self, out: &mut String) {
        if self.instructions.is_empty() {
            return;
        }
        out.push_str("\nInstructions\n");
        self.header(out, SHARE);
        let indent = (SHARE + 1) * self.domains.len();
        let mut source = None;
        for instruction in &self.instructions {
            if instruction.source.is_some() && source != instruction.source.as_ref() {
                source = instruction.source.as_ref();
                if let Some((file, line)) = source {
                    let _infallible = writeln!(out, "{:indent$}{}:{line}", "", short_path(file));
                }
            }
            for at in 0..self.domains.len() {
                let share = instruction.shares.get(at).copied();
                let text = share.map_or_else(String::new, |share| percent(share.own));
                let _infallible = write!(out, "{text:>SHARE$} ");
            }
            let (address, text) = (instruction.address, instruction.text.as_deref());
            let _infallible = writeln!(out, "{address:>8x}  {}", text.unwrap_or("?"));
        }
    }

    /// Adds the names of the domains, which are right-aligned and truncated.
    fn header(&self, out: &mut String, width: usize) {
        for name in &self.domains {
            let name: String = name.chars().take(width).collect();
            let _infallible = write!(out, "{name:>width$} ");
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
}

/// Returns a share in percent, or nothing for none.
fn percent(share: f64) -> String {
    match share > 0.0 {
        true => format!("{:.2}", share * 100.0),
        false => String::new(),
    }
}

fn own_and_total(share: TimeShare) -> String {
    format!(
        "{:>SHARE$} {:>SHARE$}",
        percent(share.own),
        percent(share.total)
    )
}
