//! What files of earlier versions say: words that have other names now. They are accepted, with a
//! warning.

/// Words of `grants` in `[driver]`, and what they are called now.
pub(crate) const GRANTS: [(&str, &str); 3] = [
    ("new", "counted"),
    ("shared", "unchecked"),
    ("mapped", "persistent"),
];
