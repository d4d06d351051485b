//! The bar that tells how far a run is.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of so many windows, drawn as `template` says.
#[must_use]
pub fn bar(windows: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(windows).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
