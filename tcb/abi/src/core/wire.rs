//! The size of a record, and the errors of malformed ones.

/// The version of this protocol. A helper of another version is rejected at its first record.
pub const VERSION: u32 = 6;
/// Words of a record.
pub const WORDS: usize = 48;
/// Bytes of a record.
pub const BYTES: usize = WORDS * 8;
/// The maximum number of descriptors attached to a record: the kernel's limit per message.
pub const DESCRIPTORS_MAX: usize = 253;

/// Error: the bytes are not a record of the expected kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The size is not [`BYTES`].
    Size(usize),
    /// The version is not [`VERSION`].
    Version(u32),
    /// The kind does not exist.
    Kind(u32),
    /// The field that ends at this word has an invalid value.
    Field(usize),
    /// Non-zero bytes follow the last field.
    TrailingBytes,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Size(bytes) => write!(f, "a record of {bytes} bytes instead of {BYTES}"),
            Self::Version(version) => write!(f, "version {version} instead of {VERSION}"),
            Self::Kind(kind) => write!(f, "no such kind: {kind}"),
            Self::Field(word) => write!(f, "the field before word {word} is invalid"),
            Self::TrailingBytes => f.write_str("bytes after the last field"),
        }
    }
}

impl std::error::Error for Malformed {}
