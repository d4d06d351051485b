//! Types that JSON represents by the same text as the file.

/// Implements the conversions that `#[serde(into = "String", try_from = "String")]` needs, with
/// `Display` and `FromStr`.
macro_rules! as_text {
    ($($kind:ty),*) => {$(
        impl From<$kind> for String {
            fn from(value: $kind) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $kind {
            type Error = <Self as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }
    )*};
}

pub(crate) use as_text;
