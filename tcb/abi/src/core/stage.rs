//! Stages of a domain.

use crate::wire_enum::wire_enum;

wire_enum! {
    /// Stage of a domain.
    #[derive(Default)]
    pub enum Stage: u8 from u16 {
        /// It has memory, but no process.
        #[default]
        Built = 0,
        /// Its process is being created, or is not ready yet.
        Starting = 1,
        /// It has reported that it is ready.
        Running = 2,
        /// It is being torn down.
        Ending = 3,
        /// It has been torn down.
        TornDown = 4,
    }
}

impl Stage {
    /// Returns whether it is being or has been torn down.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Ending | Self::TornDown)
    }
}
