//! The stages of a domain's life.

/// A stage of a domain's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It has memory, but no process.
    #[default]
    Built,
    /// Its process is being started.
    Starting,
    /// It has reported that it is ready.
    Running,
    /// It is being torn down.
    Ending,
    /// It has been torn down.
    Gone,
}

impl Stage {
    /// Returns whether it is being or has been torn down.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Ending | Self::Gone)
    }
}
