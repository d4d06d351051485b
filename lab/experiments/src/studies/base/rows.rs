//! What tables of a run share: their rows, and the form of a value.

use crate::plan::{Column, Plan};
use figures::report::{Figure, number};

/// A column, its guests, and the name of its figures.
pub(super) type Measured<'a> = (&'a Column, u32, String);

/// Every column and number of guests, with the name under which its figures are.
pub(super) fn thesis_rows(plan: &Plan) -> Vec<Measured<'_>> {
    let mut rows = Vec::new();
    for column in &plan.column {
        for wire in plan.wire.iter().filter(|wire| column.is_at(wire)) {
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

/// Only the median: intervals of so many columns do not fit a line; they are in the data.
pub(super) fn short(figure: Option<&Figure>) -> String {
    figure
        .and_then(|f| f.value)
        .map_or_else(|| "–".to_owned(), number)
}
