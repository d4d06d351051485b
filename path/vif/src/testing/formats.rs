//! The ring format of a test.

use crate::ring::Format;
use std::cell::Cell;

thread_local! {
    static FORMAT: Cell<Format> = const { Cell::new(Format::Native) };
}

/// Returns the format of rings that this thread makes for tests.
#[must_use]
pub fn format() -> Format {
    FORMAT.get()
}

/// Runs `body` with rings of this format.
pub fn with_format<T>(format: Format, body: impl FnOnce() -> T) -> T {
    let before = FORMAT.replace(format);
    let result = body();
    FORMAT.set(before);
    result
}

/// Runs a test over rings of each format.
pub fn over_each_format(body: impl Fn()) {
    for format in Format::ALL {
        // The test harness shows this output if the test fails.
        println!("rings: {format:?}");
        with_format(format, &body);
    }
}
