//! Shared parts of tables: rows, and the format of a value.

use crate::plan::{Column, Plan};
use figures::report::{Figure, number};

/// A column, its number of guests, and the configuration name of its figures.
pub(super) type Measured<'a> = (&'a Column, u32, String);

/// Returns every column and number of guests, with the configuration name of its figures.
pub(super) fn thesis_rows(plan: &Plan) -> Vec<Measured<'_>> {
    let mut rows = Vec::new();
    for column in &plan.column {
        for wire in plan.wires(column) {
            if column.place.is_empty() {
                let stops = plan.stops(column, wire);
                rows.extend(stops.iter().map(|stop| (column, 1, stop.name())));
            }
            for (place, moderation, topology) in column.variants() {
                if column.place.first() == Some(&place) {
                    let stop = plan.stop(column, Some(place), wire, moderation, topology);
                    rows.push((column, topology.guests, stop.name()));
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
