//! Downloads of a figure as SVG and of its values as CSV, inside the page.

use super::cell::{Cell, escape};
use super::values::PaperPart;
use super::{contents, style, verdicts};
use crate::papers::Item;
use figures::report::Index;

/// Returns a figure in a separately scrolling frame, with a link that saves it as SVG.
pub(super) fn figure(svg: &str, name: &str) -> String {
    if svg.is_empty() {
        return String::new();
    }
    let alone = svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
    let alone = match alone.find('>') {
        Some(end) => format!(
            "{}<style>{}</style>{}",
            &alone[..=end],
            style::figure(),
            &alone[end + 1..]
        ),
        None => alone,
    };
    format!(
        "<figure>{svg}<figcaption>{}</figcaption></figure>\n",
        link("image/svg+xml", &alone, &format!("{name}.svg"), "SVG")
    )
}

/// Returns a link that saves an item's values as CSV: one line per value and ratio.
pub(super) fn csv(
    part: &PaperPart<'_>,
    item: &Item,
    cells: &[Cell<'_>],
    index: &Index<'_>,
) -> String {
    if cells.is_empty() {
        return String::new();
    }
    let mut text =
        "configuration,metric,ours,lo,hi,paper,to,our_ratio,paper_ratio,verdict\n".to_owned();
    let known = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    for cell in cells {
        let ours = cell.ours;
        for compared in verdicts::of(part, cell, index) {
            let ratio = compared.ratio.as_ref();
            let fields = [
                cell.config.clone(),
                cell.metric.clone(),
                known(ours.and_then(|figure| figure.value)),
                known(ours.and_then(|figure| figure.lo)),
                known(ours.and_then(|figure| figure.hi)),
                known(cell.paper),
                ratio.map_or_else(String::new, |ratio| ratio.to.to_owned()),
                known(compared.own()),
                known(ratio.map(|ratio| ratio.ratio)),
                compared.text(),
            ];
            text.push_str(&fields.map(|field| quoted(&field)).join(","));
            text.push('\n');
        }
    }
    let name = format!("{}.csv", contents::anchor(part.paper, item));
    format!("<p>{}</p>\n", link("text/csv", &text, &name, "CSV"))
}

/// Returns a CSV field, in quotes if it needs them.
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

fn link(kind: &str, content: &str, name: &str, text: &str) -> String {
    format!(
        "<a class=\"save\" download=\"{}\" href=\"data:{kind};charset=utf-8,{}\">{text}</a>",
        escape(name),
        percent_encoded(content)
    )
}

/// Encodes text for a `data:` address (RFC 3986, section 2.1).
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z'
            | b'a'..=b'z'
            | b'0'..=b'9'
            | b'-'
            | b'.'
            | b'_'
            | b'~'
            | b'/'
            | b','
            | b':'
            | b';'
            | b'='
            | b'('
            | b')' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_are_quoted() {
        let fields = ["a", "a, b", "a \"b\""].map(quoted);
        assert_eq!(fields, ["a", "\"a, b\"", "\"a \"\"b\"\"\""]);
    }

    #[test]
    fn figures_are_saved_with_their_style() {
        let saved = figure(
            "<svg viewBox=\"0 0 1 1\"><text>µ</text></svg>",
            "oi-table-4",
        );
        assert!(saved.contains("download=\"oi-table-4.svg\""), "{saved}");
        let svg = "data:image/svg+xml;charset=utf-8,%3Csvg%20xmlns=%22http://www.w3.org/2000/svg";
        assert!(saved.contains(svg), "{saved}");
        assert!(saved.contains("%3Cstyle%3Etext%7B"), "{saved}");
        assert!(saved.contains("%3Ctext%3E%C2%B5"), "{saved}");
    }
}
