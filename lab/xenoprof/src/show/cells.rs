//! Cells of tables.

/// Returns a share in percent.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

/// Shortens a symbol, because names of generic functions can fill a page.
pub(super) fn shortened(symbol: &str) -> String {
    const LENGTH_MAX: usize = 60;
    if symbol.chars().count() <= LENGTH_MAX {
        return symbol.to_owned();
    }
    let head: String = symbol.chars().take(LENGTH_MAX - 1).collect();
    format!("{head}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_truncated() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"ü".repeat(100)).chars().count(), 60);
    }
}
