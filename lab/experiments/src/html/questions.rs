//! Questions that a paper leaves open: whether a mechanism saves cycles.

use super::cell::{escape, prose};
use super::values::PaperPart;
use crate::papers::{Paper, Question};
use figures::metric::words as words_of;
use figures::report::{Figure, Index, cell};
use figures::stats::ComparisonVerdict;
use std::fmt::Write as _;

/// Returns the line of the contents for a paper's questions, if it has any.
pub(super) fn link(paper: &Paper) -> String {
    match paper.question.is_empty() {
        true => String::new(),
        false => format!(
            "<li><a href=\"#{}-questions\">open questions</a></li>\n",
            paper.name
        ),
    }
}

/// Returns the table of a paper's questions, with ratios of our columns and the answers.
pub(super) fn table(part: &PaperPart<'_>, index: &Index<'_>) -> String {
    let paper = part.paper;
    if paper.question.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "<h3 id=\"{}-questions\">Open questions: does it pay?</h3>\n\
         <table><tr><th>question</th><th>columns</th><th>ratio</th>",
        paper.name
    );
    for metric in Question::OTHER_METRICS {
        let _infallible = write!(out, "<th>{}</th>", escape(&words_of(metric)));
    }
    let answer = escape(&words_of(Question::ANSWER));
    let _infallible = writeln!(out, "<th>{answer}</th><th>does it pay?</th></tr>");
    for question in &paper.question {
        for to in &question.to {
            out.push_str(&rows(part, index, question, to));
        }
    }
    out.push_str("</table>\n");
    out
}

/// Returns one row for each configuration of the question's column, such as a speed of the wire.
fn rows(part: &PaperPart<'_>, index: &Index<'_>, question: &Question, to: &str) -> String {
    let name = |metric: &str| format!("ratio.{to}.{metric}");
    let answer = name(Question::ANSWER);
    let of_column = |figure: &&Figure| {
        let column = figure.config.split('@').next().unwrap_or_default();
        column == question.column && figure.metric == answer
    };
    let mut out = String::new();
    let figures = part.figures.iter().filter(of_column);
    for figure in figures {
        out.push_str(&row_start(question, &figure.config, to));
        for metric in Question::OTHER_METRICS {
            let beside = cell(index.get(&figure.config, &name(metric)));
            let _infallible = write!(out, "<td>{}</td>", escape(&beside));
        }
        let _infallible = writeln!(
            out,
            "<td>{}</td><td>{}</td></tr>",
            escape(&cell(Some(figure))),
            pays(figure)
        );
    }
    if out.is_empty() {
        out.push_str(&row_start(question, &question.column, to));
        out.push_str("<td colspan=\"5\">not in this run</td></tr>\n");
    }
    out
}

/// Returns the start of a row: the question and the columns compared.
fn row_start(question: &Question, own: &str, to: &str) -> String {
    format!(
        "<tr><td>{}</td><td>{}</td><td>÷ {}</td>",
        prose(&question.text),
        escape(own),
        escape(to)
    )
}

/// Returns the answer, which is the verdict on a ratio of cycles.
fn pays(figure: &Figure) -> &'static str {
    match figure.verdict {
        Some(ComparisonVerdict::SameSign) => "yes",
        Some(ComparisonVerdict::Opposite) => "no",
        Some(ComparisonVerdict::Equal) => "it makes no difference",
        Some(ComparisonVerdict::NotMeasurable) => "not measurable",
        _ => "unresolved",
    }
}
