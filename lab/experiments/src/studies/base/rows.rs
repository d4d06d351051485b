//! Shared parts of tables: rows, and the format of a value.

use crate::plan::{Column, Plan};
use figures::report::{Figure, number};

/// A column with its number of guests and the configuration name of its figures.
pub(super) type Measured<'a> = (&'a Column, u32, String);

/// Returns every column and number of guests, with the configuration name of its figures.
pub(super) fn thesis_rows(plan: &Plan) -> Vec<Measured<'_>> {
    let mut rows = Vec::new();
    for column in &plan.column {
        for wire in plan.wires(column) {
            if column.place.is_empty() {
                let points = plan.points(column, wire);
                rows.extend(points.iter().map(|point| (column, 1, point.name())));
            }
            for (place, moderation, topology) in column.variants() {
                if column.place.first() == Some(&place) {
                    let point = plan.point(column, Some(place), wire, moderation, topology);
                    rows.push((column, topology.guests, point.name()));
                }
            }
        }
    }
    rows
}

/// Formats the median alone, because the intervals of many columns do not fit on a line. The data
/// file has them.
pub(super) fn short(figure: Option<&Figure>) -> String {
    figure
        .and_then(|f| f.value)
        .map_or_else(|| "–".to_owned(), number)
}
