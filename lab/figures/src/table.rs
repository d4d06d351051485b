//! Text tables for users.

use crate::clean;
use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, Width, presets,
};
use std::collections::BTreeSet;

/// Maximum width of a table.
const WIDTH: u16 = 98;
/// Padding of a column, and width of each border.
const PADDING: u16 = 2;
const BORDER: u16 = 1;
/// Maximum number of leading columns that every part of a split table repeats.
const NAMES: usize = 3;
/// The line below a table's header.
const HEADER_LINE: LineStyle = LineStyle::new('─', '─', '─', '─');

/// Formats a table that is at most 98 characters wide and has right-aligned figures. A wider table
/// is split into parts, one below the other. Each part repeats the columns that identify the rows.
#[must_use]
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let clean = |cell: &String| clean::line(cell).into_owned();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(clean).collect())
        .collect();
    let widths: Vec<u16> = (0..header.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            let words = cells.map(String::as_str).chain(header.get(column).copied());
            let words = words.flat_map(|text| text.split(' '));
            let longest = words.map(|word| word.chars().count()).max();
            u16::try_from(longest.unwrap_or(0))
                .map_or(WIDTH, |longest| longest.saturating_add(PADDING))
        })
        .collect();
    let parts = parts(&widths, names(header.len(), &rows));
    let parts = parts
        .iter()
        .map(|columns| part(header, &rows, &widths, columns));
    parts.collect::<Vec<_>>().join("\n\n")
}

fn part(header: &[&str], rows: &[Vec<String>], widths: &[u16], columns: &[usize]) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING.header_separator(HEADER_LINE))
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(columns.iter().filter_map(|&column| header.get(column)));
    for row in rows {
        table.add_row(columns.iter().filter_map(|&column| row.get(column)));
    }
    let fits = width_of(widths, columns) <= WIDTH;
    for ((place, column), &at) in table.column_iter_mut().enumerate().zip(columns) {
        if place > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
        if let Some(&width) = widths.get(at).filter(|_| fits) {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width)));
        }
    }
    table.to_string()
}

fn width_of(widths: &[u16], columns: &[usize]) -> u16 {
    let widths = columns.iter().filter_map(|&column| widths.get(column));
    widths.fold(BORDER, |sum, width| {
        sum.saturating_add(*width).saturating_add(BORDER)
    })
}

/// Returns the number of leading columns that identify every row, or 1 if more than `NAMES` are
/// needed.
fn names(columns: usize, rows: &[Vec<String>]) -> usize {
    let tell_apart = |names: &usize| {
        let distinct: BTreeSet<&[String]> = rows
            .iter()
            .map(|row| row.get(..*names).unwrap_or(row))
            .collect();
        distinct.len() == rows.len()
    };
    (1..=NAMES.min(columns)).find(tell_apart).unwrap_or(1)
}

/// Returns the columns of each part: the first `names` columns, and others until the part is full.
fn parts(widths: &[u16], names: usize) -> Vec<Vec<usize>> {
    let fresh: Vec<usize> = (0..names.min(widths.len())).collect();
    let mut parts = vec![fresh.clone()];
    for column in names..widths.len() {
        let fits = |part: &[usize]| width_of(widths, &[part, &[column]].concat()) <= WIDTH;
        match parts.last_mut() {
            Some(part) if part.len() == names || fits(part) => part.push(column),
            _ => parts.push([&*fresh, &[column]].concat()),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        let row = |row: &&[&str]| row.iter().map(|&cell| cell.to_owned()).collect();
        rows.iter().map(row).collect()
    }

    #[test]
    fn tables_stay_narrow() {
        let long = "a long first column with words that can wrap ".repeat(4);
        let endless = "x".repeat(300);
        for first in [&long, &endless] {
            let text = table(&["what", "value"], &rows(&[&[first, "1"]]));
            let narrow = text.lines().all(|line| line.chars().count() < 100);
            assert!(narrow && text.contains('1'), "{text}");
        }
    }

    #[test]
    fn wide_tables_are_split_into_parts_with_row_names() {
        let cells: Vec<String> = (20..32)
            .map(|n| format!("{n}.25\u{a0}[1.50,\u{a0}2.50]"))
            .collect();
        let row = |name, guests| {
            let cells = cells.iter().map(String::as_str);
            [name, guests].into_iter().chain(cells).collect::<Vec<_>>()
        };
        let (one, other) = (row("grantway", "1"), row("grantway", "64"));
        let headers: Vec<String> = (0..12).map(|n| format!("h{n}")).collect();
        let headers = ["", "guests"]
            .into_iter()
            .chain(headers.iter().map(String::as_str));
        let text = table(&headers.collect::<Vec<_>>(), &rows(&[&one, &other]));
        assert!(
            text.lines().all(|line| line.chars().count() <= 98),
            "{text}"
        );
        for cell in &cells {
            assert_eq!(text.matches(cell.as_str()).count(), 2, "{cell} in {text}");
        }
        let parts = text.split("\n\n").count();
        assert_eq!(text.matches("grantway").count(), 2 * parts, "{text}");
        assert_eq!((parts, text.matches("guests").count()), (4, 4), "{text}");
    }

    #[test]
    fn columns_of_any_width_are_narrow_and_complete() {
        for length in 1..40 {
            let word = "x".repeat(length);
            let row = ["name"].into_iter().chain([&*word; 20]).collect::<Vec<_>>();
            let text = table(&[""; 21], &rows(&[&row]));
            let narrow = text.lines().all(|line| line.chars().count() <= 98);
            assert!(narrow && text.matches(&word).count() >= 20, "{text}");
        }
    }

    #[test]
    fn words_that_fit_are_not_broken() {
        let names = ["configuration", "throughput", "cycles", "interval"];
        let texts = ["a sentence of several words ".repeat(5), "12.5".to_owned()];
        let long = rows(&[&[&texts[0], &texts[1], "1234567890", "[1,\u{a0}2]"]]);
        let text = table(&names, &long);
        for word in names.iter().chain(&["sentence", "several", "1234567890"]) {
            assert!(text.contains(word), "{word} in {text}");
        }
        assert!(!text.contains("\n\n"), "{text}");
    }
}
