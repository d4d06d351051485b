//! The stages of a domain's life.

/// A stage of a domain's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It has memory, but no process.
    #[default]
    Built,
    /// Its process was started.
    Starting,
    /// It has said that it is ready.
    Running,
    /// It is being cleared away.
    Ending,
    /// Nothing is left of it.
    Gone,
}

impl Stage {
    /// Whether it is on its way down, or has gone.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Ending | Self::Gone)
    }
}
