//! Progress bars of runs.

use indicatif::{ProgressBar, ProgressStyle};

/// Creates a bar for this many windows, drawn by `template`.
#[must_use]
pub fn bar(windows: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(windows).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
