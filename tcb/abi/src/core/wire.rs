//! Sizes of a record, and what is wrong with bytes that are none.

/// Of this protocol. A helper of another version is refused at its first record.
pub const VERSION: u32 = 6;
/// Words of a record.
pub const WORDS: usize = 48;
/// Bytes of a record.
pub const BYTES: usize = WORDS * 8;
/// Descriptors beside a record at most: what the kernel passes at once.
pub const DESCRIPTORS_MAX: usize = 253;

/// Bytes that are no record of the kind that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It has another size than [`BYTES`].
    Size(usize),
    /// It has another version than [`VERSION`].
    Version(u32),
    /// There is no such kind.
    Kind(u32),
    /// The field that ends at this word has a value that it cannot have.
    Field(usize),
    /// There is something behind the last field.
    Rest,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Size(bytes) => write!(f, "a record of {bytes} bytes instead of {BYTES}"),
            Self::Version(version) => write!(f, "version {version} instead of {VERSION}"),
            Self::Kind(kind) => write!(f, "no such kind: {kind}"),
            Self::Field(word) => write!(f, "the field before word {word} makes no sense"),
            Self::Rest => f.write_str("bytes behind the last field"),
        }
    }
}

impl std::error::Error for Malformed {}
