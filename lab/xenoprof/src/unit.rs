//! Units of events.

/// The unit that an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds of a clock.
    Nanoseconds,
    /// Clock cycles.
    Cycles,
    /// Occurrences, which are no measure of time.
    Occurrences,
}

impl Unit {
    /// Returns the unit of the event with this name.
    #[must_use]
    pub fn of(event: &str) -> Self {
        match event {
            "cpu-clock" | "task-clock" => Self::Nanoseconds,
            "cycles" => Self::Cycles,
            _ => Self::Occurrences,
        }
    }
}
