//! Supported versions of CNI.

/// A version of CNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CniVersion {
    /// 0.4.0
    V0_4,
    /// 1.0.0
    V1_0,
    /// 1.1.0
    V1_1,
}

impl CniVersion {
    /// All of them, oldest first.
    pub(crate) const ALL: [Self; 3] = [Self::V0_4, Self::V1_0, Self::V1_1];
    /// The newest.
    pub(crate) const NEWEST: Self = Self::V1_1;

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::V0_4 => "0.4.0",
            Self::V1_0 => "1.0.0",
            Self::V1_1 => "1.1.0",
        }
    }

    /// Returns the version of this text, if it is supported.
    pub(crate) fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.text() == text)
    }
}
